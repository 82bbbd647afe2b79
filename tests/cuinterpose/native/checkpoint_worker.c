// SPDX-License-Identifier: Apache-2.0
/*
 * A CUDA program that takes commands: one a line on stdin, one answer a line on stdout, "ok ..." or
 * "err CODE". Handles, reservations and descriptors are kept under numbers that the commands choose.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;

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
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                        \
	X(cuCtxSetCurrent, (void *))                                                                       \
	X(cuCtxCreate_v2, (void **, unsigned int, int))                                                    \
	X(cuCtxDestroy_v2, (void *))                                                                       \
	X(cuCtxSynchronize, (void))                                                                        \
	X(cuStreamBeginCapture_v2, (void *, int))                                                          \
	X(cuStreamEndCapture, (void *, void **))                                                           \
	X(cuMemGetAllocationPropertiesFromHandle, (struct properties *, u64))                              \
	X(cuMemCreate, (u64 *, u64, const struct properties *, u64))                                       \
	X(cuMemRelease, (u64))                                                                             \
	X(cuMemRetainAllocationHandle, (u64 *, void *))                                                    \
	X(cuMemAddressReserve, (u64 *, u64, u64, u64, u64))                                                \
	X(cuMemAddressFree, (u64, u64))                                                                    \
	X(cuMemMap, (u64, u64, u64, u64, u64))                                                             \
	X(cuMemUnmap, (u64, u64))                                                                          \
	X(cuMemSetAccess, (u64, u64, const struct access *, u64))                                          \
	X(cuMemGetAccess, (u64 *, const struct location *, u64))                                           \
	X(cuMemExportToShareableHandle, (void *, u64, int, u64))                                           \
	X(cuMemImportFromShareableHandle, (u64 *, void *, int))                                            \
	X(cuMemcpyHtoD_v2, (u64, const void *, u64))                                                       \
	X(cuMemcpyDtoH_v2, (void *, u64, u64))                                                             \
	X(cuLaunchKernel,                                                                                  \
	  (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,     \
	   unsigned int, void *, void **, void **))                                                        \
	X(cuGraphLaunch, (const u64 *, void *))                                                            \
	X(cuPointerGetAttribute, (u64 *, int, u64))                                                        \
	X(cuMemAlloc_v2, (u64 *, u64))                                                                     \
	X(cuIpcGetMemHandle, (struct ipc *, u64))                                                          \
	X(cuIpcOpenMemHandle_v2, (u64 *, struct ipc, unsigned int))                                        \
	X(cuIpcCloseMemHandle, (u64))                                                                      \
	X(cuMulticastCreate, (u64 *, const void *))                                                        \
	X(cuMulticastBindMem, (u64, u64, u64, u64, u64, u64))                                              \
	X(fake_fail, (const char *, int, int, int))                                                        \
	X(fake_left, (unsigned int *, unsigned int *))
#define X(name, params) static int(*name) params;
FUNCTIONS(X)
#undef X

enum { SLOTS = 256, GRANULE = 1 << 16, MOST = 64 * GRANULE };
static u64 handles[SLOTS], addresses[SLOTS], sizes[SLOTS];
static int passed = -1; /* a socket for descriptors */

static void load(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver) {
		printf("err %s\n", dlerror());
		exit(1);
	}
#define X(name, params)                                      \
	name = dlsym(driver, #name);                         \
	if (!name) {                                         \
		printf("err no %s\n", #name);                \
		exit(1);                                     \
	}
	FUNCTIONS(X)
#undef X
}

static void answer(int result)
{
	if (result)
		printf("err %d\n", result);
	else
		printf("ok\n");
}

/* A thread that creates, maps, writes, reads, unmaps and releases, until a command stops it. */
static atomic_bool churning;
static atomic_int churned, churn_error;

static void *churn(void *unused)
{
	struct properties properties = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
	struct access access = { { 1, 0 }, 3 };
	char bytes[64], back[64];

	for (int round = 0; atomic_load(&churning) && !atomic_load(&churn_error); round++) {
		u64 handle, address;
		int result = cuMemCreate(&handle, GRANULE, &properties, 0);

		result = result ? result : cuMemAddressReserve(&address, GRANULE, 0, 0, 0);
		result = result ? result : cuMemMap(address, GRANULE, 0, handle, 0);
		result = result ? result : cuMemSetAccess(address, GRANULE, &access, 1);
		memset(bytes, round, sizeof(bytes));
		result = result ? result : cuMemcpyHtoD_v2(address, bytes, sizeof(bytes));
		result = result ? result : cuMemcpyDtoH_v2(back, address, sizeof(back));
		result = result ? result : memcmp(bytes, back, sizeof(back)) ? -1 : 0;
		result = result ? result : cuMemUnmap(address, GRANULE);
		result = result ? result : cuMemAddressFree(address, GRANULE);
		result = result ? result : cuMemRelease(handle);
		if (result)
			atomic_store(&churn_error, result);
		atomic_fetch_add(&churned, 1);
	}
	return unused;
}

static pthread_t churner;

static int send_descriptor(int fd)
{
	char byte = 0;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { .align = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	return sendmsg(passed, &message, 0) == 1 ? 0 : -1;
}

static int receive_descriptor(void)
{
	char byte;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(passed, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 3; /* ".", ".." and the directory's own */
}

static void do_read(u64 address, u64 size)
{
	static unsigned char bytes[MOST];
	u64 i = 1;
	int result = size > MOST ? -1 : cuMemcpyDtoH_v2(bytes, address, size);

	if (result) {
		answer(result);
		return;
	}
	while (i < size && bytes[i] == bytes[0])
		i++;
	if (i == size)
		printf("ok %d\n", bytes[0]);
	else
		printf("ok mixed\n");
}

static void do_fork(void)
{
	pid_t child = fork();
	int status = -1;

	if (!child) {
		struct properties properties = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
		u64 handle;

		/* CUDA does not survive a fork; the tracker must not hang or crash over it */
		alarm(10);
		_exit(cuMemCreate(&handle, GRANULE + 1, &properties, 0) ? 0 : 1);
	}
	waitpid(child, &status, 0);
	printf("ok %d\n", status);
}

static void run(char *line)
{
	char command[32] = "", text[200] = "";
	long long a = 0, b = 0, c = 0, d = 0, e = 0;
	static unsigned char bytes[MOST];
	static u64 graphs[SLOTS][3];
	u64 out = 0;
	unsigned int left[2];

	sscanf(line, "%31s %lli %lli %lli %lli %lli", command, &a, &b, &c, &d, &e);
#define IS(name) else if (strcmp(command, name) == 0)
	if (strcmp(command, "init") == 0) {
		void *context;
		int result = cuInit(0);

		result = result ? result : cuDevicePrimaryCtxRetain(&context, 0);
		answer(result ? result : cuCtxSetCurrent(context));
	}
	IS("create")
	{
		struct properties properties = { .type = 1, .handle_types = c, .location = { 1, 0 } };

		answer(cuMemCreate(&handles[a], b * GRANULE, &properties, 0));
	}
	IS("release") answer(cuMemRelease(handles[a]));
	IS("reserve")
	{
		sizes[a] = b * GRANULE;
		answer(cuMemAddressReserve(&addresses[a], sizes[a], 0, 0, 0));
	}
	IS("free") answer(cuMemAddressFree(addresses[a], sizes[a]));
	/* map HANDLE RESERVATION at-granule granules offset-granule */
	IS("map") answer(cuMemMap(addresses[b] + c * GRANULE, d * GRANULE, e * GRANULE, handles[a], 0));
	IS("unmap") answer(cuMemUnmap(addresses[a] + b * GRANULE, c * GRANULE));
	IS("access")
	{
		struct access access = { { 1, e }, d };

		answer(cuMemSetAccess(addresses[a] + b * GRANULE, c * GRANULE, &access, 1));
	}
	IS("getaccess")
	{
		struct location location = { 1, 0 };
		int result = cuMemGetAccess(&out, &location, addresses[a] + b * GRANULE);

		if (result)
			answer(result);
		else
			printf("ok %d\n", (int)out);
	}
	IS("export")
	{
		int fd = -1, result = cuMemExportToShareableHandle(&fd, handles[a], 1, 0);

		if (result)
			answer(result);
		else
			printf("ok %d\n", fd);
	}
	IS("fabric")
	{
		char fabric[64];

		answer(cuMemExportToShareableHandle(fabric, handles[a], 8, 0));
	}
	IS("import") answer(cuMemImportFromShareableHandle(&handles[a], (void *)(intptr_t)b, 1));
	IS("retain") answer(cuMemRetainAllocationHandle(&handles[a], (void *)(addresses[b] + c * GRANULE)));
	IS("props")
	{
		struct properties properties;

		answer(cuMemGetAllocationPropertiesFromHandle(&properties, handles[a]));
	}
	IS("same") printf("ok %d\n", handles[a] == handles[b]);
	IS("handle") printf("ok %llu\n", (unsigned long long)handles[a]);
	IS("address") printf("ok %llu\n", (unsigned long long)addresses[a]);
	IS("write")
	{
		memset(bytes, d, c * GRANULE);
		answer(cuMemcpyHtoD_v2(addresses[a] + b * GRANULE, bytes, c * GRANULE));
	}
	IS("read") do_read(addresses[a] + b * GRANULE, c * GRANULE);
	IS("attribute") answer(cuPointerGetAttribute(&out, 2, addresses[a] + b * GRANULE));
	/* launch RESERVATION at-granule word delay; reservation -1: touches nothing */
	IS("launch")
	{
		u64 address = a < 0 ? 0 : addresses[a] + b * GRANULE, value = c;
		unsigned int delay = d;
		void *parameters[] = { &address, &value, &delay };

		answer(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	}
	IS("word")
	{
		int result = cuMemcpyDtoH_v2(&out, addresses[a] + b * GRANULE, sizeof(out));

		if (result)
			answer(result);
		else
			printf("ok %llu\n", (unsigned long long)out);
	}
	/* graph SLOT RESERVATION at-granule word delay; then replay SLOT */
	IS("graph")
	{
		graphs[a][0] = addresses[b] + c * GRANULE;
		graphs[a][1] = d;
		graphs[a][2] = e;
		answer(0);
	}
	IS("replay") answer(cuGraphLaunch(graphs[a], NULL));
	IS("sync") answer(cuCtxSynchronize());
	IS("capture") answer(cuStreamBeginCapture_v2(NULL, 0));
	IS("endcapture")
	{
		void *graph;

		answer(cuStreamEndCapture(NULL, &graph));
	}
	IS("context")
	{
		void *context;

		answer(cuCtxCreate_v2(&context, 0, 0));
	}
	IS("alloc")
	{
		sizes[a] = b * GRANULE;
		answer(cuMemAlloc_v2(&addresses[a], sizes[a]));
	}
	IS("ipcget")
	{
		struct ipc handle = { { 0 } };
		int result = cuIpcGetMemHandle(&handle, addresses[a]);

		if (result)
			answer(result);
		else
			printf("ok %s\n", handle.bytes);
	}
	IS("ipcopen")
	{
		struct ipc handle = { { 0 } };

		sscanf(line, "%*s %*s %63s", handle.bytes);
		answer(cuIpcOpenMemHandle_v2(&addresses[a], handle, 1));
	}
	IS("ipcclose") answer(cuIpcCloseMemHandle(addresses[a]));
	IS("multicast") answer(cuMulticastCreate(&handles[a], bytes));
	IS("bind") answer(cuMulticastBindMem(handles[a], 0, handles[b], 0, GRANULE, 0));
	IS("close") answer(close(a));
	IS("dup") printf("ok %d\n", dup(a));
	/* take PID FD: pidfd_getfd; open PID FD: through /proc */
	IS("take")
	{
		int process = syscall(434, (pid_t)a, 0), fd = syscall(438, process, (int)b, 0);

		close(process);
		printf(fd < 0 ? "err\n" : "ok %d\n", fd);
	}
	IS("open")
	{
		snprintf(text, sizeof(text), "/proc/%lld/fd/%lld", a, b);
		int fd = open(text, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			fd = open(text, O_RDONLY | O_CLOEXEC);
		printf(fd < 0 ? "err\n" : "ok %d\n", fd);
	}
	IS("socket")
	{
		passed = a;
		answer(0);
	}
	IS("send") answer(send_descriptor(a));
	IS("receive") printf("ok %d\n", receive_descriptor());
	IS("churn")
	{
		atomic_store(&churning, true);
		answer(pthread_create(&churner, NULL, churn, NULL));
	}
	IS("churned")
	{
		atomic_store(&churning, false);
		pthread_join(churner, NULL);
		printf("ok %d %d\n", atomic_load(&churned), atomic_load(&churn_error));
	}
	/* fail NAME code after times */
	IS("fail")
	{
		sscanf(line, "%*s %199s %lli %lli %lli", text, &b, &c, &d);
		answer(fake_fail(text, b, c, d));
	}
	IS("left")
	{
		fake_left(&left[0], &left[1]);
		printf("ok %u %u\n", left[0], left[1]);
	}
	IS("descriptors") printf("ok %d\n", descriptors());
	IS("fork") do_fork();
	IS("exit") exit(a);
	else printf("err unknown command\n");
}

int main(void)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	load();
	while (fgets(line, sizeof(line), stdin))
		run(line);
	return 0;
}
