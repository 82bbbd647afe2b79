// SPDX-License-Identifier: Apache-2.0
/*
 * Prints what a program sees of the driver's names by every look-up: which
 * function (an entry and our wrapper of it print the same), dlerror's words,
 * errno.  The test compares the output with the shim and without it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static const char *const names[] = {
#define F(symbol, ...) #symbol,
	FAKE_EVERY(F)
#undef F
	"cuGetProcAddress",
	"cuGetProcAddress_v2",
	"cuGetProcAddress_v2_ptsz",
	"cudaGetDriverEntryPoint",
	"cudaGetDriverEntryPoint_ptsz",
	"cudaGetDriverEntryPointByVersion",
	"cudaGetDriverEntryPointByVersion_ptsz",
	"cudnnCreate",
	"cublasCreate_v2",
	"cudbgApiInit",
	"cuMemCreat",
	"cuMemCreatee",
	"cu",
	"c",
	"",
};
#define COUNT (sizeof(names) / sizeof(names[0]))

static const char *of(void *address)
{
	static char text[4][300];
	static int turn;
	char *now = text[turn = (turn + 1) % 4];
	Dl_info info;

	if (!address)
		return "NULL";
	if (!dladdr(address, &info) || info.dli_saddr != address)
		return "?";
	const char *object = strrchr(info.dli_fname, '/');
	object = object ? object + 1 : info.dli_fname;
	if (strncmp(object, "libcuda", 7) == 0 || strncmp(object, "libcuinterpose", 14) == 0)
		object = "cuda";
	snprintf(now, sizeof(text[0]), "%s:%s", object, info.dli_sname);
	return now;
}

typedef void *lookup_fn(void *handle, const char *name);

static void look_up(const char *what, lookup_fn *lookup, void *handle)
{
	for (unsigned int i = 0; i < COUNT; i++) {
		dlerror();
		errno = 77;
		void *found = lookup(handle, names[i]);
		int saved = errno;
		const char *error = dlerror();

		printf("%s %s: %s, %s, errno %d\n", what, names[i], of(found), error ? error : "-", saved);
		/* success clears what was pending, and failure replaces it */
		dlsym(RTLD_DEFAULT, "no_such_symbol");
		lookup(handle, names[i]);
		error = dlerror();
		printf("  again: %s\n", error ? error : "-");
	}
}

/* not a tail call: the caller of dlsym is this program */
static void *of_program(void *handle, const char *name)
{
	void *volatile found = dlsym(handle, name);

	return found;
}

static void everywhere(const char *scene, void *driver)
{
	static const char *const plugins[] = { "plugin", "direct" };
	char what[100];

	printf("== %s\n", scene);
	if (driver)
		look_up("program handle", of_program, driver);
	look_up("program default", of_program, RTLD_DEFAULT);
	look_up("program next", of_program, RTLD_NEXT);
	look_up("program main", of_program, dlopen(NULL, RTLD_NOW));
	for (int i = 0; i < 2; i++) {
		char name[100];

		snprintf(name, sizeof(name), "lib%s.so", plugins[i]);
		void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		if (!handle) {
			printf("%s\n", dlerror());
			continue;
		}
		snprintf(name, sizeof(name), "%s_dlsym", plugins[i]);
		lookup_fn *lookup = (lookup_fn *)dlsym(handle, name);
		snprintf(what, sizeof(what), "%s default", plugins[i]);
		look_up(what, lookup, RTLD_DEFAULT);
		snprintf(what, sizeof(what), "%s next", plugins[i]);
		look_up(what, lookup, RTLD_NEXT);
		snprintf(what, sizeof(what), "%s own", plugins[i]);
		look_up(what, lookup, handle);
		/* private scopes, for names off the surface */
		static const char *const private[] = { "plugin_private", "dep_private", "shared_name", "getppid" };
		for (int k = 0; k < 4; k++) {
			printf("%s %s: default %s", plugins[i], private[k], of(lookup(RTLD_DEFAULT, private[k])));
			printf(" next %s\n", of(lookup(RTLD_NEXT, private[k])));
		}
		void *dep = dlsym(handle, "dep_dlsym");
		if (dep)
			printf("dep: default %s next %s\n", of(((lookup_fn *)dep)(RTLD_DEFAULT, "dep_private")),
			       of(((lookup_fn *)dep)(RTLD_NEXT, "shared_name")));
		dlclose(handle);
	}
}

static void resolvers(void *driver)
{
	static const int versions[] = { 0,     2000,  10010, 10020, 11000, 11010, 11020, 11030, 11111,
					12000, 12010, 12020, 13000, 13009, 13010, 99990, INT_MAX, -1 };
	int (*four)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
	int (*five)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
	static char sentinel;

	for (unsigned int i = 0; i < COUNT; i++)
		for (unsigned int v = 0; v < sizeof(versions) / sizeof(versions[0]); v++)
			for (int flags = 0; flags < 5; flags++) {
				void *pfn = &sentinel;
				int status = -77, result = four(names[i], &pfn, versions[v], flags);

				printf("%s %d %d: %d %s", names[i], versions[v], flags, result,
				       pfn == &sentinel ? "untouched" : of(pfn));
				pfn = &sentinel;
				result = five(names[i], &pfn, versions[v], flags, &status);
				printf(", %d %s %d", result, pfn == &sentinel ? "untouched" : of(pfn), status);
				pfn = &sentinel;
				result = five(names[i], &pfn, versions[v], flags, NULL);
				printf(", %d %s\n", result, pfn == &sentinel ? "untouched" : of(pfn));
			}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (strcmp(mode, "absent") == 0) {
		everywhere(mode, NULL);
	} else if (strcmp(mode, "local") == 0) {
		everywhere(mode, dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
	} else if (strcmp(mode, "global") == 0) {
		everywhere(mode, dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
	} else if (strcmp(mode, "runtime") == 0) {
		for (int i = 11; i < 14; i++) {
			char name[32];

			snprintf(name, sizeof(name), "libcudart.so.%d%s", i, i == 11 ? ".0" : "");
			everywhere(name, dlopen(name, i == 12 ? RTLD_NOW | RTLD_GLOBAL : RTLD_NOW));
		}
	} else if (strcmp(mode, "resolvers") == 0) {
		resolvers(dlopen("libcuda.so.1", RTLD_NOW));
	} else {
		fprintf(stderr, "usage: transcript absent|local|global|runtime|resolvers\n");
		return 2;
	}
	return 0;
}
