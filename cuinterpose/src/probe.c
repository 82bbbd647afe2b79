// SPDX-License-Identifier: Apache-2.0
/*
 * The resolver-contract probe, run by conform.py with and without a shim.
 *
 * One line a question: the route, what was asked, the result, the class of the
 * pointer and the status.  The class is "untouched", "NULL", "entry S" (the
 * driver's own S), "wrapper S" (somebody else's S) or "other OBJECT".  Only
 * look-ups and resolvers are called, never a function that they return.
 *
 * Loaded after the driver, so that its own references are bound as a program's
 * that is linked with the driver: that is the direct route.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "surface.h"

#define X(name, ...) extern __attribute__((weak)) int name(void);
CUI_DRIVER(X)
#undef X

static const struct {
	const char *name;
	int (*bound)(void);
} surface[] = {
#define X(name, ...) { #name, name },
	CUI_DRIVER(X)
#undef X
};
#define SURFACE (sizeof(surface) / sizeof(surface[0]))

/* Asked for beside the surface: names outside it, names that no driver has, and what only headers define. */
static const char *const others[] = {
	"cuInit",
	"cuDriverGetVersion",
	"cuMemAlloc",
	"cuMemFree",
	"cuMemcpyHtoDAsync",
	"cuStreamCreate",
	"cuMemAlloc_v2",
	"cuGetProcAddress_v2_ptsz",
	"cuNoSuchFunction",
	"",
};
#define OTHERS (sizeof(others) / sizeof(others[0]))

static const int versions[] = { 0,     2000,  10010, 10019, 10020, 10999, 11000, 11009, 11010, 11020, 11029, 11030,
				11999, 12000, 12009, 12010, 12020, 12040, 12050, 12080, 13000, 13009, 13010, 13050,
				99990, INT_MAX, INT_MIN, -1 };
#define VERSIONS (sizeof(versions) / sizeof(versions[0]))

static char untouched;
static struct link_map *driver;

/* What dlsym gave for each name: it names a wrapper that its object does not export. */
static void *by_dlsym[SURFACE];

static const char *class_of(const void *pointer)
{
	static char text[300];
	Dl_info info;
	struct link_map *map;

	if (pointer == &untouched)
		return "untouched";
	if (!pointer)
		return "NULL";
	if (!dladdr1(pointer, &info, (void **)&map, RTLD_DL_LINKMAP))
		return "other ?";
	if (info.dli_sname && info.dli_saddr == pointer) {
		snprintf(text, sizeof(text), "%s %s", map == driver ? "entry" : "wrapper", info.dli_sname);
		return text;
	}
	for (unsigned int i = 0; i < SURFACE; i++)
		if (by_dlsym[i] == pointer) {
			snprintf(text, sizeof(text), "wrapper %s", surface[i].name);
			return text;
		}
	const char *object = strrchr(info.dli_fname, '/');
	snprintf(text, sizeof(text), "other %s", object ? object + 1 : info.dli_fname);
	return text;
}

static const char *name_of(unsigned int i)
{
	return i < SURFACE ? surface[i].name : others[i - SURFACE];
}

static void probe_resolvers(void)
{
	int (*four)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
	int (*five)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");

	for (unsigned int i = 0; i < SURFACE + OTHERS; i++)
		for (unsigned int v = 0; v < VERSIONS; v++)
			for (int flags = 0; flags < 5; flags++) {
				void *pfn = &untouched;
				int status = -99, result;

				if (four) {
					result = four(name_of(i), &pfn, versions[v], flags);
					printf("cuGetProcAddress\t%s %d %d\t%d\t%s\t-\n", name_of(i), versions[v], flags,
					       result, class_of(pfn));
				}
				if (five) {
					pfn = &untouched;
					result = five(name_of(i), &pfn, versions[v], flags, &status);
					printf("cuGetProcAddress_v2\t%s %d %d\t%d\t%s\t%d\n", name_of(i), versions[v],
					       flags, result, class_of(pfn), status);
					pfn = &untouched;
					result = five(name_of(i), &pfn, versions[v], flags, NULL);
					printf("cuGetProcAddress_v2\t%s %d %d no status\t%d\t%s\t-\n", name_of(i),
					       versions[v], flags, result, class_of(pfn));
				}
			}
}

/* generation 11 takes no driverStatus. */
static void probe_runtime(void *runtime, int generation)
{
	static const char *const names[] = { "cudaGetDriverEntryPoint", "cudaGetDriverEntryPoint_ptsz" };
	static const char *const by_version_names[] = { "cudaGetDriverEntryPointByVersion",
							"cudaGetDriverEntryPointByVersion_ptsz" };

	for (unsigned int i = 0; i < SURFACE + OTHERS; i++)
		for (int k = 0; k < 2; k++) {
			void *function = dlsym(runtime, names[k]), *by_version = dlsym(runtime, by_version_names[k]);
			void *pfn = &untouched;
			int status = -99, result;

			if (function && generation == 11) {
				result = ((int (*)(const char *, void **, unsigned long long))function)(name_of(i), &pfn, 0);
				printf("%s\t%s\t%d\t%s\t-\n", names[k], name_of(i), result, class_of(pfn));
			} else if (function) {
				result = ((int (*)(const char *, void **, unsigned long long, int *))function)(
					name_of(i), &pfn, 0, &status);
				printf("%s\t%s\t%d\t%s\t%d\n", names[k], name_of(i), result, class_of(pfn), status);
			}
			for (unsigned int v = 0; by_version && v < VERSIONS; v++) {
				pfn = &untouched;
				status = -99;
				result = ((int (*)(const char *, void **, unsigned int, unsigned long long,
						   int *))by_version)(name_of(i), &pfn, versions[v], 0, &status);
				printf("%s\t%s %d\t%d\t%s\t%d\n", by_version_names[k], name_of(i), versions[v], result,
				       class_of(pfn), status);
			}
		}
}

/* 0, or 1 and why on stderr. runtime: NULL, or a libcudart's path, of that generation. */
__attribute__((visibility("default"))) int cuprobe_main(const char *libcuda, const char *libcudart, int generation);
int cuprobe_main(const char *libcuda, const char *libcudart, int generation)
{
	void *runtime;

	driver = dlopen(libcuda, RTLD_NOW | RTLD_NOLOAD);
	if (!driver) {
		fprintf(stderr, "%s: not loaded\n", libcuda);
		return 1;
	}
	for (unsigned int i = 0; i < SURFACE; i++)
		by_dlsym[i] = dlsym(driver, surface[i].name);
	for (unsigned int i = 0; i < SURFACE; i++) {
		printf("dlsym\t%s\t-\t%s\t-\n", surface[i].name, class_of(by_dlsym[i]));
		printf("direct\t%s\t-\t%s\t-\n", surface[i].name, class_of((void *)surface[i].bound));
	}
	for (unsigned int i = 0; i < OTHERS; i++)
		printf("dlsym\t%s\t-\t%s\t-\n", others[i], class_of(dlsym(driver, others[i])));
	probe_resolvers();
	if (libcudart) {
		runtime = dlopen(libcudart, RTLD_NOW);
		if (!runtime) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		probe_runtime(runtime, generation);
	}
	return fflush(stdout) ? 1 : 0;
}
