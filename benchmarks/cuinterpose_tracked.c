// SPDX-License-Identifier: Apache-2.0
/* What tracking adds to a call, in ns, best of many: run without the shim, with it, and with CUINTERPOSE_TRACK=1. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <time.h>

int cuMemCreate(uint64_t *handle, uint64_t size, const void *properties, uint64_t flags);
int cuMemMap(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle, uint64_t flags);
int cuMemUnmap(uint64_t address, uint64_t size);
int cuMemSetAccess(uint64_t address, uint64_t size, const void *access, uint64_t count);
int cuLaunchKernel(void *f, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e, unsigned int g,
		   unsigned int shared, void *stream, void **parameters, void **extra);

enum { ROUNDS = 200, MAPS = 256, LAUNCHES = 10000, SIZE = 2 << 20 };
#define BASE UINT64_C(0x300000000000)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

int main(void)
{
	int properties[8] = { 1, 1, 1, 0 }, access[3] = { 1, 0, 3 };
	double map = 1e18, grant = 1e18, unmap = 1e18, launch = 1e18;
	uint64_t handles[MAPS];

	for (int i = 0; i < MAPS; i++)
		cuMemCreate(&handles[i], SIZE, properties, 0);
	for (int round = 0; round < ROUNDS; round++) {
		double start = now(), mapped, granted, unmapped;

		for (int i = 0; i < MAPS; i++)
			cuMemMap(BASE + (uint64_t)i * SIZE, SIZE, 0, handles[i], 0);
		mapped = now();
		for (int i = 0; i < MAPS; i++)
			cuMemSetAccess(BASE + (uint64_t)i * SIZE, SIZE, access, 1);
		granted = now();
		for (int i = 0; i < MAPS; i++)
			cuMemUnmap(BASE + (uint64_t)i * SIZE, SIZE);
		unmapped = now();
		map = lesser(map, (mapped - start) / MAPS);
		grant = lesser(grant, (granted - mapped) / MAPS);
		unmap = lesser(unmap, (unmapped - granted) / MAPS);
		start = now();
		for (int i = 0; i < LAUNCHES; i++)
			cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
		launch = lesser(launch, (now() - start) / LAUNCHES);
	}
	printf("cuMemMap\t%.1f\ncuMemSetAccess\t%.1f\ncuMemUnmap\t%.1f\ncuLaunchKernel\t%.1f\n", map, grant, unmap, launch);
	return 0;
}
