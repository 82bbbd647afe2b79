// SPDX-License-Identifier: Apache-2.0
/*
 * libcuda.so.1 of one version (-DDRIVER_VERSION=12020), with the resolvers'
 * measured contract.  Every function records its arguments and returns a number
 * of its own.
 */
#include <stddef.h>
#include <string.h>

#include "fake.h"

static struct fake_call last;

const struct fake_call *fake_last_call(void)
{
	return &last;
}

enum {
#define F(symbol, ...) INDEX_##symbol,
	FAKE_EVERY(F)
#undef F
};

#define BODY(s, ...)                                             \
	{                                                             \
		uint64_t arguments[7] = { __VA_ARGS__ };              \
		last.symbol = #s;                                     \
		memcpy(last.arguments, arguments, sizeof(arguments)); \
		last.calls++;                                         \
		return 7000 + INDEX_##s;                              \
	}
#define U uint64_t
#define TAKES_1(s) int s(U a) BODY(s, a)
#define TAKES_2(s) int s(U a, U b) BODY(s, a, b)
#define TAKES_3(s) int s(U a, U b, U c) BODY(s, a, b, c)
#define TAKES_4(s) int s(U a, U b, U c, U d) BODY(s, a, b, c, d)
#define TAKES_5(s) int s(U a, U b, U c, U d, U e) BODY(s, a, b, c, d, e)
#define TAKES_6(s) int s(U a, U b, U c, U d, U e, U f) BODY(s, a, b, c, d, e, f)
#define TAKES_7(s) int s(U a, U b, U c, U d, U e, U f, U g) BODY(s, a, b, c, d, e, f, g)
#define F(symbol, base, since, count) TAKES_##count(symbol)
FAKE_VMM(F)
FAKE_OTHERS(F)
#if DRIVER_VERSION >= 12010
FAKE_MULTICAST(F)
#endif
#if DRIVER_VERSION >= 13010
FAKE_DEVICE_EXPLICIT(F)
#endif
#undef F

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

static const struct {
	const char *symbol, *base;
	unsigned int since;
	void *address;
} table[] = {
#define F(symbol, base, since, count) { #symbol, #base, since, symbol },
	FAKE_VMM(F)
	FAKE_OTHERS(F)
#if DRIVER_VERSION >= 12010
	FAKE_MULTICAST(F)
#endif
#if DRIVER_VERSION >= 13010
	FAKE_DEVICE_EXPLICIT(F)
#endif
#undef F
	{ "cuGetProcAddress", "cuGetProcAddress", 11030, cuGetProcAddress },
	{ "cuGetProcAddress_v2", "cuGetProcAddress", 12000, cuGetProcAddress_v2 },
};

void *fake_entry(const char *symbol)
{
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (strcmp(table[i].symbol, symbol) == 0)
			return table[i].address;
	return NULL;
}

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, FAILED = 999 };
enum { FOUND = 0, NO_SUCH_SYMBOL = 1, VERSION_TOO_LOW = 2 };

/* The newest ABI that the requested version (unsigned) has; NULL and why. */
static void *search(const char *name, unsigned int version, uint64_t flags, int *why)
{
	void *found = NULL;
	unsigned int best = 0;

	*why = NO_SUCH_SYMBOL;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		int ptsz = strstr(table[i].symbol, "_ptsz") != NULL;

		if (strcmp(table[i].base, name) != 0)
			continue;
		if (strcmp(name, "cuMemMapArrayAsync") == 0 && ptsz != ((flags & 2) != 0))
			continue;
		if (table[i].since > version) {
			if (!found)
				*why = VERSION_TOO_LOW;
		} else if (table[i].since >= best) {
			best = table[i].since;
			found = table[i].address;
			*why = FOUND;
		}
	}
	return found;
}

/* 12.x accepts versions above its own; 13.x refuses them. */
static int refused(int version, uint64_t flags)
{
	return flags > 3 || (DRIVER_VERSION >= 13000 && (unsigned int)version > DRIVER_VERSION);
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	int why;

	if (refused(version, flags))
		return INVALID_VALUE;
	void *found = search(symbol, version, flags, &why);
	if (!found)
		return NOT_FOUND;
	*pfn = found;
	return version == FAKE_FAILING_VERSION ? FAILED : SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	int why;

	if (refused(version, flags))
		return INVALID_VALUE;
	*pfn = search(symbol, version, flags, &why);
	if (status)
		*status = why;
	return version == FAKE_FAILING_VERSION ? FAILED : SUCCESS;
}
