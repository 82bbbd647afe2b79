// SPDX-License-Identifier: Apache-2.0
/* What a call and a look-up cost, in ns, best of many; run with and without the shim. One "name value" a line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

int cuMemRelease(uint64_t handle);
int cuMulticastBindMem_v2(uint64_t a, int b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g);
int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

extern char **environ;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static double children_cpu(void)
{
	struct rusage usage;

	getrusage(RUSAGE_CHILDREN, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e9 + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e3;
}

enum { ROUNDS = 15 };

#define MEASURE(name, times, statement)                                   \
	do {                                                              \
		double best = 1e18;                                       \
		for (int round = 0; round < ROUNDS; round++) {            \
			double start = now();                             \
			for (int i = 0; i < (times); i++) {               \
				statement;                                \
				__asm__ volatile("" ::: "memory");        \
			}                                                 \
			double taken = (now() - start) / (times);         \
			best = taken < best ? taken : best;               \
		}                                                         \
		printf("%s\t%.2f\n", name, best);                         \
	} while (0)

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *pfn;
	int (*release)(uint64_t) = dlsym(driver, "cuMemRelease");
	int status;
	double best = 1e18;

	MEASURE("call, bound by the loader", 200000, cuMemRelease(i));
	MEASURE("call, 7 arguments", 200000, cuMulticastBindMem_v2(i, 1, 2, 3, 4, 5, 6));
	MEASURE("call, pointer from dlsym", 200000, release(i));
	MEASURE("cuGetProcAddress_v2, covered", 100000, cuGetProcAddress_v2("cuMemRelease", &pfn, 12000, 0, &status));
	MEASURE("cuGetProcAddress_v2, uncovered", 100000, cuGetProcAddress_v2("cuInit", &pfn, 12000, 0, &status));
	MEASURE("dlsym(handle, covered)", 20000, dlsym(driver, "cuMemRelease"));
	MEASURE("dlsym(handle, \"cuInit\")", 20000, dlsym(driver, "cuInit"));
	MEASURE("dlsym(handle, \"cuMemAlloc_v2\")", 20000, dlsym(driver, "cuMemAlloc_v2"));
	MEASURE("dlsym(handle, missing)", 2000, dlsym(driver, "cuMemAllocate"));
	MEASURE("dlsym(RTLD_DEFAULT, \"getppid\")", 20000, dlsym(RTLD_DEFAULT, "getppid"));
	MEASURE("dlsym(RTLD_DEFAULT, covered)", 2000, dlsym(RTLD_DEFAULT, "cuMemRelease"));
	MEASURE("dlsym(RTLD_NEXT, covered)", 2000, dlsym(RTLD_NEXT, "cuMemRelease"));
	for (int round = 0; round < ROUNDS; round++) {
		double start = children_cpu();

		for (int i = 0; i < 20; i++) {
			char *const arguments[] = { "true", NULL };
			pid_t child;

			if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0)
				waitpid(child, NULL, 0);
		}
		double taken = (children_cpu() - start) / 20;
		best = taken < best ? taken : best;
	}
	printf("fork+exec of true, CPU\t%.0f\n", best);
	return 0;
}
