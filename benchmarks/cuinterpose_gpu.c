// SPDX-License-Identifier: Apache-2.0
/*
 * On a real GPU, one allocation of the smallest size:
 *
 *	share	a creator and an importer: the importer gets a ticket, EXPORT is answered by
 *		cuMemExportToShareableHandle in the creator's callback, twice; each time the
 *		importer maps the memory and compares its pattern; it leaves another, which the
 *		creator then finds; the descriptors of both are counted before and after
 *	bench	cuMemCreate+cuMemRelease, export+close and a query of properties, in ns, best of many
 *
 * Multicast is never touched.  Links with nothing of CUDA.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../cuinterpose/src/endpoint.h"
#include "../cuinterpose/src/peer.h"

/* The C ABI of cuda.h, of which this uses a little. */
struct location {
	int type, id;
};
struct properties {
	int type, handle_types;
	struct location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct access {
	struct location location;
	int flags;
};
enum { PINNED = 1, DEVICE = 1, POSIX_FD = 1, READ_WRITE = 3 };
typedef unsigned long long u64;

#define FUNCTIONS(X)                                                                                       \
	X(cuInit, (unsigned int))                                                                          \
	X(cuDeviceGet, (int *, int))                                                                       \
	X(cuDevicePrimaryCtxRetain, (void **, int))                                                        \
	X(cuDevicePrimaryCtxRelease_v2, (int))                                                             \
	X(cuCtxSetCurrent, (void *))                                                                       \
	X(cuCtxSynchronize, (void))                                                                        \
	X(cuMemGetAllocationGranularity, (size_t *, const struct properties *, int))                       \
	X(cuMemGetAllocationPropertiesFromHandle, (struct properties *, u64))                              \
	X(cuMemCreate, (u64 *, size_t, const struct properties *, u64))                                    \
	X(cuMemRelease, (u64))                                                                             \
	X(cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64))                                          \
	X(cuMemAddressFree, (u64, size_t))                                                                 \
	X(cuMemMap, (u64, size_t, size_t, u64, u64))                                                       \
	X(cuMemUnmap, (u64, size_t))                                                                       \
	X(cuMemSetAccess, (u64, size_t, const struct access *, size_t))                                    \
	X(cuMemExportToShareableHandle, (void *, u64, int, u64))                                           \
	X(cuMemImportFromShareableHandle, (u64 *, void *, int))                                            \
	X(cuMemcpyHtoD_v2, (u64, const void *, size_t))                                                    \
	X(cuMemcpyDtoH_v2, (void *, u64, size_t))
#define X(name, params) static int(*name) params;
FUNCTIONS(X)
#undef X

static const char *role;

#define MUST(call)                                                                       \
	do {                                                                             \
		int result_ = (call);                                                    \
		if (result_) {                                                           \
			printf("%s: line %d: %s: %d\n", role, __LINE__, #call, result_); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

static struct properties properties = {
	.type = PINNED,
	.handle_types = POSIX_FD,
	.location = { DEVICE, 0 },
};
static size_t size;
static int device;

static void start(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;

	MUST(!driver);
#define X(name, params) MUST(!(name = dlsym(driver, #name)));
	FUNCTIONS(X)
#undef X
	MUST(cuInit(0));
	MUST(cuDeviceGet(&device, 0));
	MUST(cuDevicePrimaryCtxRetain(&context, device));
	MUST(cuCtxSetCurrent(context));
	properties.location.id = device;
	MUST(cuMemGetAllocationGranularity(&size, &properties, 0));
}

static u64 map(u64 handle)
{
	struct access access = { { DEVICE, device }, READ_WRITE };
	u64 address;

	MUST(cuMemAddressReserve(&address, size, 0, 0, 0));
	MUST(cuMemMap(address, size, 0, handle, 0));
	MUST(cuMemSetAccess(address, size, &access, 1));
	return address;
}

static void unmap(u64 address)
{
	MUST(cuMemUnmap(address, size));
	MUST(cuMemAddressFree(address, size));
}

static void fill(unsigned int *words, unsigned int seed)
{
	for (size_t i = 0; i < size / sizeof(*words); i++)
		words[i] = seed += 0x9e3779b9;
}

static void write_pattern(u64 address, unsigned int seed)
{
	unsigned int *words = malloc(size);

	fill(words, seed);
	MUST(cuMemcpyHtoD_v2(address, words, size));
	MUST(cuCtxSynchronize());
	free(words);
}

static void compare_pattern(u64 address, unsigned int seed)
{
	unsigned int *expected = malloc(size), *got = malloc(size);

	fill(expected, seed);
	MUST(cuMemcpyDtoH_v2(got, address, size));
	MUST(memcmp(got, expected, size) != 0);
	free(expected);
	free(got);
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

enum { CREATORS = 11, IMPORTERS = 77 };

static void import(int ticket_fd)
{
	struct cui_ticket ticket, again;

	MUST(cui_ticket_classify(ticket_fd, &ticket) != CUI_TICKET);
	for (int round = 0; round < 3; round++) { /* the first warms the driver's own descriptors up */
		static int before;
		int32_t cuda;
		u64 handle;
		int fd;

		if (round == 1)
			before = descriptors();
		enum cui_status status = cui_export(&ticket, 5000, &fd, &cuda);
		MUST(status);
		MUST(!(fcntl(fd, F_GETFD) & FD_CLOEXEC));
		MUST(cui_ticket_classify(fd, &again) != CUI_NOT_A_TICKET);
		MUST(cuMemImportFromShareableHandle(&handle, (void *)(long)fd, POSIX_FD));
		close(fd);
		u64 address = map(handle);
		compare_pattern(address, round == 2 ? IMPORTERS : CREATORS);
		if (round == 1)
			write_pattern(address, IMPORTERS);
		unmap(address);
		MUST(cuMemRelease(handle));
		if (round == 2) {
			printf("importer: 2 exports after a first, patterns equal, descriptors %d before and %d after\n",
			       before, descriptors());
			MUST(before != descriptors());
		}
	}
	/* an unknown resource is refused, and so is the creator's name of another */
	int32_t cuda;
	int fd;
	again = ticket;
	again.resource.bytes[0] ^= 1;
	MUST(cui_export(&again, 5000, &fd, &cuda) != CUI_UNKNOWN);
	again = ticket;
	again.participant.bytes[0] ^= 1;
	MUST(cui_export(&again, 5000, &fd, &cuda) != CUI_PARTICIPANT);
}

static struct cui_identity resource;

static enum cui_status lookup(void *context, const struct cui_identity *asked, uint16_t kind, int *fd, int32_t *cuda)
{
	if (!cui_identity_same(asked, &resource))
		return CUI_UNKNOWN;
	if (kind != CUI_UNICAST)
		return CUI_KIND;
	*cuda = cuMemExportToShareableHandle(fd, *(u64 *)context, POSIX_FD, 0);
	return *cuda ? CUI_CUDA : CUI_OK;
}

static void share(const char *self)
{
	char directory[] = "/tmp/cuinterpose-gpu-XXXXXX", number[16];
	struct cui_endpoint endpoint;
	struct cui_ticket ticket = { .kind = CUI_UNICAST };
	int ticket_fd, status, alive[2]; /* the importer holds its writing end: at its exit serving ends */
	u64 handle;

	start();
	MUST(cuMemCreate(&handle, size, &properties, 0));
	u64 address = map(handle);
	write_pattern(address, CREATORS);
	MUST(!mkdtemp(directory));
	MUST(cui_identity_random(&ticket.participant));
	MUST(cui_identity_random(&ticket.resource));
	resource = ticket.resource;
	MUST(cui_endpoint_open(&endpoint, directory, &ticket.participant));
	strcpy(ticket.endpoint, endpoint.path);
	MUST(cui_ticket_create(&ticket, &ticket_fd));
	MUST(pipe2(alive, O_CLOEXEC));
	struct cui_server server = {
		.lookup = lookup, .context = &handle, .timeout_ms = 5000, .coordinator = geteuid(), .stop = alive[0],
	};
	pid_t child = fork();
	if (!child) {
		fcntl(ticket_fd, F_SETFD, 0);
		fcntl(alive[1], F_SETFD, 0);
		snprintf(number, sizeof(number), "%d", ticket_fd);
		execl(self, self, "import", number, (char *)NULL);
		_exit(127);
	}
	close(alive[1]);
	int before = descriptors();
	MUST(cui_endpoint_serve(&endpoint, &server));
	MUST(waitpid(child, &status, 0) != child || status);
	int after = descriptors();
	compare_pattern(address, IMPORTERS);
	printf("creator: the importer's pattern arrived, descriptors %d before and %d after\n", before, after);
	MUST(before != after);
	cui_endpoint_close(&endpoint);
	close(ticket_fd);
	close(alive[0]);
	rmdir(directory);
	unmap(address);
	MUST(cuMemRelease(handle));
	MUST(cuDevicePrimaryCtxRelease_v2(device));
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

#define MEASURE(name, rounds, times, statement)                                   \
	do {                                                                      \
		double best = 1e18, worst = 0;                                    \
		for (int round = 0; round < (rounds); round++) {                  \
			double begun = now();                                     \
			for (int i = 0; i < (times); i++) {                       \
				statement;                                        \
			}                                                         \
			double taken = (now() - begun) / (times);                 \
			best = taken < best ? taken : best;                       \
			worst = taken > worst ? taken : worst;                    \
		}                                                                 \
		printf("%s\t%.1f\tns best, %.1f worst\n", name, best, worst);     \
	} while (0)

static void bench(void)
{
	struct properties seen;
	u64 handle;
	int fd;

	start();
	MEASURE("cuMemCreate+cuMemRelease", 20, 100, {
		MUST(cuMemCreate(&handle, size, &properties, 0));
		MUST(cuMemRelease(handle));
	});
	MUST(cuMemCreate(&handle, size, &properties, 0));
	MEASURE("cuMemExportToShareableHandle+close", 20, 100, {
		MUST(cuMemExportToShareableHandle(&fd, handle, POSIX_FD, 0));
		close(fd);
	});
	MEASURE("cuMemGetAllocationPropertiesFromHandle", 50, 20000,
		MUST(cuMemGetAllocationPropertiesFromHandle(&seen, handle)));
	MUST(cuMemRelease(handle));
	MUST(cuDevicePrimaryCtxRelease_v2(device));
}

int main(int argc, char **argv)
{
	setlinebuf(stdout);
	role = argc > 1 ? argv[1] : "";
	if (strcmp(role, "share") == 0) {
		share(argv[0]);
	} else if (strcmp(role, "import") == 0 && argc == 3) {
		start();
		import(atoi(argv[2]));
	} else if (strcmp(role, "bench") == 0) {
		bench();
	} else {
		fprintf(stderr, "usage: %s share|bench\n", argv[0]);
		return 2;
	}
	return 0;
}
