// SPDX-License-Identifier: Apache-2.0
/* Somebody else's interposer of cuMemCreate, and with -DDLSYM of dlsym too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

int interposed_calls, interposed_lookups;

int cuMemCreate(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	int (*next)(uint64_t, uint64_t, uint64_t, uint64_t) = dlsym(RTLD_NEXT, "cuMemCreate");

	interposed_calls++;
	return next ? next(a, b, c, d) : -1;
}

#ifdef DLSYM
void *dlsym(void *handle, const char *name)
{
	static void *(*next)(void *, const char *);

	if (!next)
		next = dlvsym(RTLD_NEXT, "dlsym", BASE_VERSION);
	if (strncmp(name, "cu", 2) == 0)
		interposed_lookups++;
	return next(handle, name);
}
#endif
