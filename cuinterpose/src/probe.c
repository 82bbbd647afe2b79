// SPDX-License-Identifier: Apache-2.0
/*
 * The resolver-contract probe, run by conform.py with and without a shim.
 *
 * One line a question, written at once so that a crash leaves all before it: the
 * route, what was asked, the result, the class of the pointer and the status.  The class is "untouched", "NULL", "entry S" (the
 * driver's own S), "wrapper S" (another object's S) or "other OBJECT".  Only
 * look-ups and resolvers are called, never a function that they return.
 *
 * Loaded after the driver, so that its own references are bound as a program's
 * that is linked with the driver: that is the direct route.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

/* All that is asked for: the surface, then the others, then what the shim under test exports. */
static struct asked {
	const char *name;
	void *by_dlsym; /* what dlsym gave: it names a wrapper that its object does not export */
} *asked;
static unsigned int asked_count;

static const int versions[] = { 0,     2000,  10010, 10019, 10020, 10999, 11000, 11009, 11010, 11020, 11029, 11030,
				11999, 12000, 12009, 12010, 12020, 12040, 12050, 12080, 13000, 13009, 13010, 13050,
				99990, INT_MAX, INT_MIN, -1 };
#define VERSIONS (sizeof(versions) / sizeof(versions[0]))

/* For what the shim exports: the other releases at which some function of the driver got a new ABI. */
static const int more_versions[] = { 1000, 2010, 2020, 3000,  3010,  3020,  4000,  4010,  5000,  5050,  6000,  6050,
				     7000, 7050, 8000, 9000,  9020,  10000, 11020, 11040, 11060, 11070, 11080, 12030 };
#define MORE_VERSIONS (sizeof(more_versions) / sizeof(more_versions[0]))

static char untouched;
static struct link_map *driver;

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
	for (unsigned int i = 0; i < asked_count; i++)
		if (asked[i].by_dlsym == pointer) {
			snprintf(text, sizeof(text), "wrapper %s", asked[i].name);
			return text;
		}
	const char *object = strrchr(info.dli_fname, '/');
	snprintf(text, sizeof(text), "other %s", object ? object + 1 : info.dli_fname);
	return text;
}

static bool is_asked(const char *name)
{
	for (unsigned int i = 0; i < asked_count; i++)
		if (strcmp(asked[i].name, name) == 0)
			return true;
	return false;
}

static bool ask_for(const char *const *exported, unsigned int count)
{
	asked = calloc(SURFACE + OTHERS + count, sizeof(*asked));
	if (!asked)
		return false;
	for (unsigned int i = 0; i < SURFACE; i++)
		asked[asked_count++].name = surface[i].name;
	for (unsigned int i = 0; i < OTHERS; i++)
		asked[asked_count++].name = others[i];
	for (unsigned int i = 0; i < count; i++)
		if (!is_asked(exported[i]))
			asked[asked_count++].name = exported[i];
	return true;
}

static unsigned int versions_of(unsigned int i)
{
	return i < SURFACE + OTHERS ? VERSIONS : VERSIONS + MORE_VERSIONS;
}

static int version(unsigned int v)
{
	return v < VERSIONS ? versions[v] : more_versions[v - VERSIONS];
}

static void probe_resolvers(void)
{
	int (*four)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
	int (*five)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");

	for (unsigned int i = 0; i < asked_count; i++)
		for (unsigned int v = 0; v < versions_of(i); v++)
			for (int flags = 0; flags < 5; flags++) {
				void *pfn = &untouched;
				int status = -99, result;

				if (four) {
					result = four(asked[i].name, &pfn, version(v), flags);
					printf("cuGetProcAddress\t%s %d %d\t%d\t%s\t-\n", asked[i].name, version(v), flags,
					       result, class_of(pfn));
				}
				if (five) {
					pfn = &untouched;
					result = five(asked[i].name, &pfn, version(v), flags, &status);
					printf("cuGetProcAddress_v2\t%s %d %d\t%d\t%s\t%d\n", asked[i].name, version(v),
					       flags, result, class_of(pfn), status);
					pfn = &untouched;
					result = five(asked[i].name, &pfn, version(v), flags, NULL);
					printf("cuGetProcAddress_v2\t%s %d %d no status\t%d\t%s\t-\n", asked[i].name,
					       version(v), flags, result, class_of(pfn));
				}
			}
}

/* generation 11 takes no driverStatus. */
static void probe_runtime(void *runtime, int generation)
{
	static const char *const names[] = { "cudaGetDriverEntryPoint", "cudaGetDriverEntryPoint_ptsz" };
	static const char *const by_version_names[] = { "cudaGetDriverEntryPointByVersion",
							"cudaGetDriverEntryPointByVersion_ptsz" };

	for (unsigned int i = 0; i < asked_count; i++)
		for (int k = 0; k < 2; k++) {
			void *function = dlsym(runtime, names[k]), *by_version = dlsym(runtime, by_version_names[k]);
			void *pfn = &untouched;
			int status = -99, result;

			if (function && generation == 11) {
				result = ((int (*)(const char *, void **, unsigned long long))function)(asked[i].name, &pfn, 0);
				printf("%s\t%s\t%d\t%s\t-\n", names[k], asked[i].name, result, class_of(pfn));
			} else if (function) {
				result = ((int (*)(const char *, void **, unsigned long long, int *))function)(
					asked[i].name, &pfn, 0, &status);
				printf("%s\t%s\t%d\t%s\t%d\n", names[k], asked[i].name, result, class_of(pfn), status);
			}
			for (unsigned int v = 0; by_version && v < versions_of(i); v++) {
				pfn = &untouched;
				status = -99;
				result = ((int (*)(const char *, void **, unsigned int, unsigned long long,
						   int *))by_version)(asked[i].name, &pfn, version(v), 0, &status);
				printf("%s\t%s %d\t%d\t%s\t%d\n", by_version_names[k], asked[i].name, version(v), result,
				       class_of(pfn), status);
			}
		}
}

/*
 * 0, or 1 and why on stderr.  runtime: NULL, or a libcudart's path, of that generation.
 * exported: count names to ask for beside our own.
 */
__attribute__((visibility("default"))) int cuprobe_main(const char *libcuda, const char *libcudart, int generation,
							const char *const *exported, unsigned int count);
int cuprobe_main(const char *libcuda, const char *libcudart, int generation, const char *const *exported,
		 unsigned int count)
{
	void *runtime;

	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	driver = dlopen(libcuda, RTLD_NOW | RTLD_NOLOAD);
	if (!driver || !ask_for(exported, count)) {
		fprintf(stderr, "%s: %s\n", libcuda, driver ? "no memory" : "not loaded");
		return 1;
	}
	for (unsigned int i = 0; i < asked_count; i++) {
		asked[i].by_dlsym = dlsym(driver, asked[i].name);
		printf("dlsym\t%s\t-\t%s\t-\n", asked[i].name, class_of(asked[i].by_dlsym));
	}
	for (unsigned int i = 0; i < SURFACE; i++)
		printf("direct\t%s\t-\t%s\t-\n", surface[i].name, class_of((void *)surface[i].bound));
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
