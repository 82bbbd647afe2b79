// SPDX-License-Identifier: Apache-2.0
/*
 * Somebody else's interposer of cuMemCreate, and with -DDLSYM of dlsym too; with
 * -DDLOPEN of dlopen and dlclose, which leave another errno behind, as they may.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
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

#ifdef DLOPEN
void *dlopen(const char *name, int flags)
{
	void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
	void *handle = next(name, flags);

	interposed_calls++;
	errno = EXDEV;
	return handle;
}

int dlclose(void *handle)
{
	int (*next)(void *) = dlsym(RTLD_NEXT, "dlclose");
	int result = next(handle);

	errno = EXDEV;
	return result;
}
#endif
