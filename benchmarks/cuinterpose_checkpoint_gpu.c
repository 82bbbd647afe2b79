// SPDX-License-Identifier: Apache-2.0
/*
 * A CUDA program for benchmarks/cuinterpose_checkpoint_gpu.py: one command a line on stdin, one answer a line on stdout,
 * "ok ..." or "err CODE". Sizes are in granules of the driver. It is idle between commands, and never touches multicast.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

struct location {
	int type, id;
};
struct properties {
	int type, handle_types;
	struct location location;
	void *win32;
	u64 flags;
};
struct access {
	struct location location;
	int flags;
};
struct ipc {
	char bytes[64];
};

#define FUNCTIONS(X)                                                                                       \
	X(cuInit, (unsigned int))                                                                          \
	X(cuDeviceGet, (int *, int))                                                                       \
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                        \
	X(cuCtxSetCurrent, (void *))                                                                       \
	X(cuCtxSynchronize, (void))                                                                        \
	X(cuMemGetAllocationGranularity, (size_t *, const struct properties *, int))                       \
	X(cuMemCreate, (u64 *, size_t, const struct properties *, u64))                                    \
	X(cuMemRelease, (u64))                                                                             \
	X(cuMemRetainAllocationHandle, (u64 *, void *))                                                    \
	X(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64))                                          \
	X(cuMemAddressFree, (u64, size_t))                                                                 \
	X(cuMemMap, (u64, size_t, size_t, u64, u64))                                                       \
	X(cuMemUnmap, (u64, size_t))                                                                       \
	X(cuMemSetAccess, (u64, size_t, const struct access *, size_t))                                    \
	X(cuMemExportToShareableHandle, (void *, u64, int, u64))                                           \
	X(cuMemImportFromShareableHandle, (u64 *, void *, int))                                            \
	X(cuMemAlloc_v2, (u64 *, size_t))                                                                  \
	X(cuMemsetD8_v2, (u64, unsigned char, size_t))                                                     \
	X(cuMemcpyHtoD_v2, (u64, const void *, size_t))                                                    \
	X(cuMemcpyDtoH_v2, (void *, u64, size_t))                                                          \
	X(cuMemcpyDtoDAsync_v2, (u64, u64, size_t, void *))                                                \
	X(cuIpcGetMemHandle, (struct ipc *, u64))                                                          \
	X(cuIpcOpenMemHandle_v2, (u64 *, struct ipc, unsigned int))                                        \
	X(cuIpcGetEventHandle, (struct ipc *, void *))                                                     \
	X(cuIpcOpenEventHandle, (void **, struct ipc))                                                     \
	X(cuEventCreate, (void **, unsigned int))                                                          \
	X(cuEventRecord, (void *, void *))                                                                 \
	X(cuEventQuery, (void *))                                                                          \
	X(cuStreamCreate, (void **, unsigned int))                                                         \
	X(cuStreamSynchronize, (void *))                                                                   \
	X(cuStreamBeginCapture_v2, (void *, int))                                                          \
	X(cuStreamEndCapture, (void *, void **))                                                           \
	X(cuGraphInstantiateWithFlags, (void **, void *, u64))                                             \
	X(cuGraphLaunch, (void *, void *))                                                                 \
	X(cuModuleLoadData, (void **, const void *))                                                       \
	X(cuModuleGetFunction, (void **, void *, const char *))                                            \
	X(cuLaunchKernel,                                                                                  \
	  (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,     \
	   unsigned int, void *, void **, void **))
#define X(name, params) static int(*name) params;
FUNCTIONS(X)
#undef X

enum { SLOTS = 64, POSIX_FD = 1, READ_WRITE = 3, INTERPROCESS = 6 /* and no timing */ };
static u64 handles[SLOTS], addresses[SLOTS];
static size_t sizes[SLOTS], granule;
static int device;
static struct properties properties = { .type = 1, .handle_types = POSIX_FD, .location = { 1, 0 } };
static void *stream, *graph, *event;

static const char ptx[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	".visible .entry nothing()\n{\n\tret;\n}\n"
	".visible .entry spin(.param .u64 ns)\n{\n\t.reg .u64 %r<4>;\n\t.reg .pred %p;\n"
	"\tld.param.u64 %r1, [ns];\n\tmov.u64 %r2, %globaltimer;\n"
	"again:\n\tmov.u64 %r3, %globaltimer;\n\tsub.u64 %r3, %r3, %r2;\n\tsetp.lt.u64 %p, %r3, %r1;\n"
	"\t@%p bra again;\n\tret;\n}\n";

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static void answer(int result)
{
	if (result)
		printf("err %d\n", result);
	else
		printf("ok\n");
}

#define TRY(call)                          \
	do {                               \
		int tried = (call);        \
		if (tried)                 \
			return tried;      \
	} while (0)

static int start(int ordinal)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;

	if (!driver)
		return -1;
#define X(name, params)                           \
	if (!(name = dlsym(driver, #name)))       \
		return -2;
	FUNCTIONS(X)
#undef X
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, ordinal));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	properties.location.id = device;
	return cuMemGetAllocationGranularity(&granule, &properties, 0);
}

static void words(uint32_t *to, size_t size, uint32_t seed)
{
	for (size_t i = 0; i < size / sizeof(*to); i++)
		to[i] = seed += 0x9e3779b9;
}

static int fill(u64 address, size_t size, uint32_t seed)
{
	uint32_t *pattern = malloc(size);

	words(pattern, size, seed);
	int result = cuMemcpyHtoD_v2(address, pattern, size);
	free(pattern);
	return result ? result : cuCtxSynchronize();
}

static int check(u64 address, size_t size, uint32_t seed)
{
	uint32_t *expected = malloc(size), *got = malloc(size);
	int result = cuMemcpyDtoH_v2(got, address, size);

	words(expected, size, seed);
	result = result ? result : memcmp(expected, got, size) ? -3 : 0;
	free(expected);
	free(got);
	return result;
}

/* A graph that copies SLOT's memory to another's: it holds the address. */
static int capture(int from, int to)
{
	void *captured;

	if (!stream)
		TRY(cuStreamCreate(&stream, 1));
	TRY(cuStreamBeginCapture_v2(stream, 0));
	TRY(cuMemcpyDtoDAsync_v2(addresses[to], addresses[from], sizes[from], stream));
	TRY(cuStreamEndCapture(stream, &captured));
	return cuGraphInstantiateWithFlags(&graph, captured, 0);
}

#define MEASURE(name, times, statement)                                          \
	do {                                                                     \
		double best = 1e18;                                              \
		for (int round = 0; round < 15; round++) {                       \
			double begun = now();                                    \
			for (int i = 0; i < (times); i++) {                      \
				statement;                                       \
			}                                                        \
			double taken = (now() - begun) / (times);                \
			best = taken < best ? taken : best;                      \
		}                                                                \
		printf("\t%s=%.0f", name, best);                                 \
	} while (0)

static int measure(void)
{
	enum { MAPS = 64 };
	struct access access = { { 1, device }, READ_WRITE };
	void *module, *function;
	u64 handle, base, all[MAPS];

	TRY(cuModuleLoadData(&module, ptx));
	TRY(cuModuleGetFunction(&function, module, "nothing"));
	if (!stream)
		TRY(cuStreamCreate(&stream, 1));
	TRY(cuMemCreate(&handle, granule, &properties, 0));
	TRY(cuMemAddressReserve(&base, MAPS * granule, 0, 0, 0));
	for (int i = 0; i < MAPS; i++)
		TRY(cuMemCreate(&all[i], granule, &properties, 0));
	printf("ok");
	double map = 1e18, grant = 1e18, unmap = 1e18;
	for (int round = 0; round < 20; round++) {
		double times[4];

		times[0] = now();
		for (int i = 0; i < MAPS; i++)
			cuMemMap(base + i * granule, granule, 0, all[i], 0);
		times[1] = now();
		for (int i = 0; i < MAPS; i++)
			cuMemSetAccess(base + i * granule, granule, &access, 1);
		times[2] = now();
		for (int i = 0; i < MAPS; i++)
			cuMemUnmap(base + i * granule, granule);
		times[3] = now();
		map = times[1] - times[0] < map ? times[1] - times[0] : map;
		grant = times[2] - times[1] < grant ? times[2] - times[1] : grant;
		unmap = times[3] - times[2] < unmap ? times[3] - times[2] : unmap;
	}
	printf("\tcuMemMap=%.0f\tcuMemSetAccess=%.0f\tcuMemUnmap=%.0f", map / MAPS, grant / MAPS, unmap / MAPS);
	MEASURE("cuLaunchKernel", 500, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	cuStreamSynchronize(stream);
	MEASURE("cuMemCreate+cuMemRelease", 50, {
		u64 made;

		cuMemCreate(&made, granule, &properties, 0);
		cuMemRelease(made);
	});
	int fd;
	MEASURE("cuMemExportToShareableHandle+close", 50, {
		cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0);
		close(fd);
	});
	printf("\n");
	for (int i = 0; i < MAPS; i++)
		cuMemRelease(all[i]);
	cuMemRelease(handle);
	return cuMemAddressFree(base, MAPS * granule);
}

/* Work for half a second, and the event after it. */
static int record(void)
{
	void *module, *function;
	u64 ns = 500000000;
	void *parameters[] = { &ns };

	TRY(cuModuleLoadData(&module, ptx));
	TRY(cuModuleGetFunction(&function, module, "spin"));
	TRY(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	return cuEventRecord(event, NULL);
}

static void run(const char *line)
{
	char command[32] = "";
	long long a = 0, b = 0, c = 0, d = 0, e = 0;

	sscanf(line, "%31s %lli %lli %lli %lli %lli", command, &a, &b, &c, &d, &e);
#define IS(name) else if (strcmp(command, name) == 0)
	if (strcmp(command, "init") == 0)
		answer(start(a));
	IS("granule") printf("ok %zu\n", granule);
	IS("create") answer(cuMemCreate(&handles[a], b * granule, &properties, 0));
	IS("release") answer(cuMemRelease(handles[a]));
	IS("reserve")
	{
		sizes[a] = b * granule;
		answer(cuMemAddressReserve(&addresses[a], sizes[a], 0, 0, 0));
	}
	/* map HANDLE RESERVATION at granules offset */
	IS("map") answer(cuMemMap(addresses[b] + c * granule, d * granule, e * granule, handles[a], 0));
	IS("unmap") answer(cuMemUnmap(addresses[a] + b * granule, c * granule));
	IS("access")
	{
		struct access access = { { 1, device }, READ_WRITE };

		answer(cuMemSetAccess(addresses[a] + b * granule, c * granule, &access, 1));
	}
	IS("export")
	{
		int fd = -1, result = cuMemExportToShareableHandle(&fd, handles[a], POSIX_FD, 0);

		if (result)
			answer(result);
		else
			printf("ok %d\n", fd);
	}
	IS("retain") answer(cuMemRetainAllocationHandle(&handles[a], (void *)addresses[b]));
	IS("take")
	{
		int process = syscall(434, (pid_t)a, 0), fd = syscall(438, process, (int)b, 0);

		close(process);
		printf(fd < 0 ? "err -1\n" : "ok %d\n", fd);
	}
	IS("import") answer(cuMemImportFromShareableHandle(&handles[a], (void *)(intptr_t)b, POSIX_FD));
	IS("close") answer(close(a));
	IS("address") printf("ok %llu\n", addresses[a]);
	IS("fill") answer(fill(addresses[a] + b * granule, c * granule, d));
	IS("check") answer(check(addresses[a] + b * granule, c * granule, d));
	IS("alloc")
	{
		sizes[a] = b * granule;
		answer(cuMemAlloc_v2(&addresses[a], sizes[a]));
	}
	IS("capture") answer(capture(a, b));
	IS("begincapture") answer((stream || !cuStreamCreate(&stream, 1)) ? cuStreamBeginCapture_v2(stream, 0) : -1);
	IS("endcapture")
	{
		void *captured;

		answer(cuStreamEndCapture(stream, &captured));
	}
	IS("replay")
	{
		int result = cuGraphLaunch(graph, stream);

		answer(result ? result : cuStreamSynchronize(stream));
	}
	IS("ipcget")
	{
		struct ipc handle;
		int result = cuIpcGetMemHandle(&handle, addresses[a]);

		printf(result ? "err %d" : "ok ", result);
		for (int i = 0; i < 64 && !result; i++)
			printf("%02x", (unsigned char)handle.bytes[i]);
		printf("\n");
	}
	IS("eventget")
	{
		struct ipc handle;
		int result = cuEventCreate(&event, INTERPROCESS);

		result = result ? result : cuEventRecord(event, NULL);
		result = result ? result : cuIpcGetEventHandle(&handle, event);
		printf(result ? "err %d" : "ok ", result);
		for (int i = 0; i < 64 && !result; i++)
			printf("%02x", (unsigned char)handle.bytes[i]);
		printf("\n");
	}
	IS("ipcopen")
	{
		struct ipc handle;

		for (int i = 0; i < 64; i++)
			sscanf(strrchr(line, ' ') + 1 + 2 * i, "%2hhx", (unsigned char *)&handle.bytes[i]);
		answer(cuIpcOpenMemHandle_v2(&addresses[a], handle, 1));
	}
	IS("eventopen")
	{
		struct ipc handle;

		for (int i = 0; i < 64; i++)
			sscanf(strrchr(line, ' ') + 1 + 2 * i, "%2hhx", (unsigned char *)&handle.bytes[i]);
		answer(cuIpcOpenEventHandle(&event, handle));
	}
	IS("record") answer(record());
	IS("query") printf("ok %d\n", cuEventQuery(event));
	IS("sync") answer(cuCtxSynchronize());
	IS("measure")
	{
		int result = measure();

		if (result)
			answer(result);
	}
	else printf("err -9\n");
}

int main(void)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin))
		run(line);
	return 0;
}
