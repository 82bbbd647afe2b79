// SPDX-License-Identifier: Apache-2.0
/*
 * Stands behind the recorder in LD_PRELOAD and plays the kernel: /dev/nvidia* open as other character devices, and their
 * ioctls answer here. FAKE_DRIVER_LOG, when set, is a file of eight bytes: the count of ioctls that the recorder must agree with.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Where a test made nodes of these names over the same devices, they are what opens. */
static const char *stand_in(const char *path)
{
	struct stat st;

	if (!stat(path, &st) && S_ISCHR(st.st_mode) && major(st.st_rdev) == 1)
		return path;
	if (!strcmp(path, "/dev/nvidiactl"))
		return "/dev/urandom";
	if (!strcmp(path, "/dev/nvidia0"))
		return "/dev/zero";
	if (!strcmp(path, "/dev/nvidia-uvm"))
		return "/dev/full";
	return path;
}

#define OPEN(name)                                                                              \
	int name(const char *path, int flags, ...)                                              \
	{                                                                                       \
		int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
		mode_t mode = 0;                                                                \
		va_list list;                                                                   \
		va_start(list, flags);                                                          \
		if (flags & O_CREAT)                                                            \
			mode = va_arg(list, mode_t);                                            \
		va_end(list);                                                                   \
		return real(stand_in(path), flags, mode);                                       \
	}

OPEN(open)
OPEN(open64)

int openat(int dir, const char *path, int flags, ...)
{
	int (*real)(int, const char *, int, ...) = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
	mode_t mode = 0;
	va_list list;

	va_start(list, flags);
	if (flags & O_CREAT)
		mode = va_arg(list, mode_t);
	va_end(list);
	return real(dir, stand_in(path), flags, mode);
}

static void put32(void *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const void *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static void *get_pointer(const void *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return (void *)(uintptr_t)value;
}

/* Mapped at the start: it counts on when the program has closed everything, or may open nothing any more. */
static _Atomic(uint64_t) *counter;

static __attribute__((constructor)) void begin(void)
{
	const char *path = getenv("FAKE_DRIVER_LOG");
	int log = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (log < 0)
		return;
	counter = mmap(NULL, sizeof(*counter), PROT_READ | PROT_WRITE, MAP_SHARED, log, 0);
	close(log);
	if (counter == MAP_FAILED)
		abort();
}

static void count(void)
{
	if (counter)
		atomic_fetch_add(counter, 1);
}

int ioctl(int fd, unsigned long request, ...)
{
	int (*real)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	unsigned char *arg;
	struct stat st;
	va_list list;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (fstat(fd, &st) || !S_ISCHR(st.st_mode) || major(st.st_rdev) != 1)
		return real(fd, request, arg);
	count();
	if (minor(st.st_rdev) == 7) {
		if (request == 0x30000001 && arg) {
			put32(arg + 8, 0);
			return 0;
		}
		errno = EINVAL;
		return -1;
	}
	if (!arg || arg == (void *)8) {
		errno = EFAULT;
		return -1;
	}
	switch (request & 0xff) {
	case 0x2a: {
		uint32_t cmd = get32(arg + 8), size = get32(arg + 24);
		unsigned char *params = get_pointer(arg + 16);

		put32(arg + 28, cmd == 0x20800ffe ? 0x56 : 0);
		if (cmd == 0xdead)
			for (;;)
				pause();
		if (cmd == 0xd00d) {
			/* What the program wants to happen during the call. */
			void (*act)(void *);

			memcpy(&act, params, sizeof(act));
			act(get_pointer(params + 8));
			return 0;
		}
		if (cmd == 0x20800999)
			return 0;
		if (params && size && cmd != 0x101)
			params[0] ^= 0xff;
		if (params && cmd == 0x101 && size >= 40)
			memcpy(get_pointer(params + 8), "580.159.04", 11);
		return 0;
	}
	case 0x2b:
		put32(arg + 8, 0xc1d00001);
		put32(arg + 40, 0);
		return 0;
	case 0x29:
	case 0xd2:
		return 0;
	}
	errno = EINVAL;
	return -1;
}
