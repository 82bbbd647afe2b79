// SPDX-License-Identifier: Apache-2.0
/*
 * The LD_PRELOAD recorder of nvproxy-trace: what a program does with /dev/nvidia*, as frames in the spool. This file stands in
 * front of libc's calls on files. A call is two frames, so that the one a process died in is known too.
 */
#define _GNU_SOURCE
#include "look.h"
#include "programs.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEVICES 1024
#define OTHERS 256 /* of them, terminals and the like: the link of one more is read at each call */
#define DEVICE_NAME 64
#define PREFIX "/dev/nvidia"

struct device {
	atomic_int ready;
	dev_t number;
	char name[DEVICE_NAME]; /* empty: not one of ours */
};

static struct device devices[DEVICES];
static atomic_int device_count;
static atomic_ullong next_id;

REAL(open, int, const char *, int, ...)
REAL(open64, int, const char *, int, ...)
REAL(openat, int, int, const char *, int, ...)
REAL(openat64, int, int, const char *, int, ...)
REAL(__open_2, int, const char *, int)
REAL(__open64_2, int, const char *, int)
REAL(__openat_2, int, int, const char *, int)
REAL(__openat64_2, int, int, const char *, int)
REAL(ioctl, int, int, unsigned long, ...)
REAL(mmap, void *, void *, size_t, int, int, int, off_t)
REAL(mmap64, void *, void *, size_t, int, int, int, off_t)
REAL(close, int, int)
REAL(dup, int, int)
REAL(dup2, int, int, int)
REAL(dup3, int, int, int, int)
REAL(fcntl, int, int, int, ...)
REAL(fcntl64, int, int, int, ...)

static bool our_path(const char *path)
{
	return !strncmp(path, PREFIX, sizeof(PREFIX) - 1);
}

static const struct device *device_known(dev_t number)
{
	int i, count = atomic_load(&device_count);

	for (i = 0; i < count; i++)
		if (atomic_load(&devices[i].ready) && devices[i].number == number)
			return &devices[i];
	return NULL;
}

/* NULL where no place is left: what is done with one of ours is then counted as lost. */
static const struct device *device_learn(dev_t number, const char *name)
{
	const struct device *known = device_known(number);
	int i = atomic_load(&device_count);
	struct device *new;

	if (known)
		return known;
	do {
		if (i >= (*name ? DEVICES : OTHERS)) {
			if (*name)
				spool_missed();
			return NULL;
		}
	} while (!atomic_compare_exchange_weak(&device_count, &i, i + 1));
	new = &devices[i];
	new->number = number;
	strncpy(new->name, name, DEVICE_NAME - 1);
	atomic_store(&new->ready, 1);
	return new;
}

static void decimal(char *to, int value)
{
	char digits[12];
	int n = 0;

	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	while (n)
		*to++ = digits[--n];
	*to = 0;
}

/* The device behind a descriptor, or NULL. One fstat for a file of another kind. */
static const struct device *device_of(int fd)
{
	char link[] = "/proc/self/fd/0123456789", name[PATH_MAX];
	const struct device *device;
	struct stat st;
	ssize_t n;

	if (fd < 0 || !spool_active() || fstat(fd, &st) || !S_ISCHR(st.st_mode))
		return NULL;
	device = device_known(st.st_rdev);
	if (!device) {
		decimal(link + sizeof("/proc/self/fd/") - 1, fd);
		n = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof(name) - 1);
		if (n < 0)
			return NULL;
		name[n] = 0;
		device = device_learn(st.st_rdev, our_path(name) ? name : "");
	}
	return device && device->name[0] ? device : NULL;
}
static int recorded_ioctl(int fd, unsigned long request, void *arg, const struct device *device)
{
	struct call call;
	struct frame frame;
	bool values = spool_keeps_values(), sent;
	int entry_errno = errno, ret, err;

	call.count = 0;
	call.status.size = 0;
	frame_begin(&frame, FRAME_ENTER);
	frame.id = atomic_fetch_add(&next_id, 1);
	frame.fd = fd;
	frame.request = (uint32_t)request;
	frame.args[0] = (uint64_t)(uintptr_t)arg;
	look(&call, &frame, device->name, request, frame.args[0]);
	if (!values)
		call.count = 0;
	sent = frame_send(&frame, device->name, strlen(device->name), call.pieces, call.count);

	frame.time = now();
	errno = entry_errno;
	ret = real_ioctl()(fd, request, arg);
	err = errno;
	if (!sent)
		return ret;

	/* The same places again. What did not change is left out when the spool is read. */
	if (call.count)
		call.pieces[0].read = NULL;
	if (call.status.size)
		call.pieces[call.count++] = call.status;
	frame.args[1] = now() - frame.time;
	frame.type = FRAME_LEAVE;
	frame.flags = 0;
	frame.ret = ret;
	frame.err = ret < 0 ? (uint32_t)err : 0;
	frame_send(&frame, NULL, 0, call.pieces, call.count);
	errno = err;
	return ret;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	const struct device *device;
	int saved = errno;
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	device = device_of(fd);
	errno = saved;
	return device ? recorded_ioctl(fd, request, arg, device) : real_ioctl()(fd, request, arg);
}

static void opened(const char *path, int flags, int fd, uint64_t start)
{
	struct frame frame;
	struct stat st;
	int saved = errno;
	char text[PATH_MAX];
	ssize_t size = copy_string(text, path, sizeof(text));

	frame_begin(&frame, FRAME_OPEN);
	frame.time = start;
	frame.args[0] = (uint32_t)flags;
	frame.args[1] = now() - start;
	frame.fd = fd;
	frame.ret = fd;
	frame.err = fd < 0 ? (uint32_t)saved : 0;
	frame_send(&frame, text, size < 0 ? 0 : (size_t)size, NULL, 0);
	if (size > 0 && fd >= 0 && !fstat(fd, &st) && S_ISCHR(st.st_mode))
		device_learn(st.st_rdev, text);
	errno = saved;
}

/* The path may be one that the kernel will answer with EFAULT. */
static bool watched(const char *path)
{
	char start[sizeof(PREFIX)];
	int saved = errno;
	bool ours = spool_active() && copy_string(start, path, sizeof(start)) > 0 && our_path(start);

	errno = saved;
	return ours;
}

#define OPEN_MODE(mode, flags, last)                                    \
	do {                                                            \
		if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
			va_list list;                                   \
			va_start(list, last);                           \
			mode = va_arg(list, mode_t);                    \
			va_end(list);                                   \
		}                                                       \
	} while (0)

#define OPEN_VARIADIC(name)                                   \
	EXPORT int name(const char *path, int flags, ...)     \
	{                                                     \
		mode_t mode = 0;                              \
		uint64_t start;                               \
		int fd;                                       \
                                                              \
		OPEN_MODE(mode, flags, flags);                \
		if (!watched(path))                           \
			return real_##name()(path, flags, mode); \
		start = now();                                \
		fd = real_##name()(path, flags, mode);        \
		opened(path, flags, fd, start);               \
		return fd;                                    \
	}

#define OPENAT_VARIADIC(name)                                            \
	EXPORT int name(int dir, const char *path, int flags, ...)       \
	{                                                                \
		mode_t mode = 0;                                         \
		uint64_t start;                                          \
		int fd;                                                  \
                                                                         \
		OPEN_MODE(mode, flags, flags);                           \
		if (!watched(path))                                      \
			return real_##name()(dir, path, flags, mode);    \
		start = now();                                           \
		fd = real_##name()(dir, path, flags, mode);              \
		opened(path, flags, fd, start);                          \
		return fd;                                               \
	}

#define OPEN_FORTIFIED(name)                               \
	EXPORT int name(const char *path, int flags);      \
	EXPORT int name(const char *path, int flags)       \
	{                                                  \
		uint64_t start = now();                    \
		int fd = real_##name()(path, flags);       \
                                                           \
		if (watched(path))                         \
			opened(path, flags, fd, start);    \
		return fd;                                 \
	}

#define OPENAT_FORTIFIED(name)                                     \
	EXPORT int name(int dir, const char *path, int flags);     \
	EXPORT int name(int dir, const char *path, int flags)      \
	{                                                          \
		uint64_t start = now();                            \
		int fd = real_##name()(dir, path, flags);          \
                                                                   \
		if (watched(path))                                 \
			opened(path, flags, fd, start);            \
		return fd;                                         \
	}

OPEN_VARIADIC(open)
OPEN_VARIADIC(open64)
OPENAT_VARIADIC(openat)
OPENAT_VARIADIC(openat64)
OPEN_FORTIFIED(__open_2)
OPEN_FORTIFIED(__open64_2)
OPENAT_FORTIFIED(__openat_2)
OPENAT_FORTIFIED(__openat64_2)
static void mapped(const struct device *device, void *va, void *addr, size_t size, int prot, int flags, int fd, off_t offset,
		   uint64_t start)
{
	struct frame frame;
	int saved = errno;

	frame_begin(&frame, FRAME_MMAP);
	frame.time = start;
	frame.fd = fd;
	frame.ret = (int64_t)(intptr_t)va;
	frame.err = va == MAP_FAILED ? (uint32_t)saved : 0;
	frame.args[0] = (uint64_t)(uintptr_t)addr;
	frame.args[1] = now() - start;
	frame.args[2] = size;
	frame.args[3] = (uint64_t)offset;
	frame.request = (uint32_t)prot;
	frame.key = (uint32_t)flags;
	frame_send(&frame, device->name, strlen(device->name), NULL, 0);
	errno = saved;
}

#define MMAP(name)                                                                                      \
	EXPORT void *name(void *addr, size_t size, int prot, int flags, int fd, off_t offset)          \
	{                                                                                              \
		int saved = errno;                                                                     \
		const struct device *device = device_of(fd);                                           \
		uint64_t start = device ? now() : 0;                                                   \
		void *va;                                                                              \
                                                                                                       \
		errno = saved;                                                                         \
		va = real_##name() ? real_##name()(addr, size, prot, flags, fd, offset) :              \
				     (void *)syscall(SYS_mmap, addr, size, prot, flags, fd, offset);   \
		if (device)                                                                            \
			mapped(device, va, addr, size, prot, flags, fd, offset, start);                \
		return va;                                                                             \
	}

MMAP(mmap)
MMAP(mmap64)
static void fd_event(enum frame_type type, const struct device *device, int fd, int ret, uint64_t start)
{
	struct frame frame;
	int saved = errno;

	frame_begin(&frame, type);
	frame.time = start;
	frame.args[1] = now() - start;
	frame.fd = fd;
	frame.ret = ret;
	frame.err = ret < 0 ? (uint32_t)saved : 0;
	frame_send(&frame, device->name, strlen(device->name), NULL, 0);
	errno = saved;
}

EXPORT int close(int fd)
{
	int saved = errno, ret;
	const struct device *device = device_of(fd);
	uint64_t start = device ? now() : 0;

	errno = saved;
	ret = real_close()(fd);
	if (device)
		fd_event(FRAME_CLOSE, device, fd, ret, start);
	return ret;
}

/* The number that a dup takes over may have been a device until now: that is a close of it. */
static void duplicated(const struct device *old, const struct device *gone, int fd, int ret, uint64_t start)
{
	if (gone && ret >= 0 && ret != fd)
		fd_event(FRAME_CLOSE, gone, ret, 0, start);
	if (old)
		fd_event(FRAME_DUP, old, fd, ret, start);
}

EXPORT int dup(int fd)
{
	int saved = errno, ret;
	const struct device *device = device_of(fd);
	uint64_t start = device ? now() : 0;

	errno = saved;
	ret = real_dup()(fd);
	duplicated(device, NULL, fd, ret, start);
	return ret;
}

EXPORT int dup2(int fd, int to)
{
	int saved = errno, ret;
	const struct device *device = device_of(fd), *gone = device_of(to);
	uint64_t start = device || gone ? now() : 0;

	errno = saved;
	ret = real_dup2()(fd, to);
	duplicated(device, gone, fd, ret, start);
	return ret;
}

EXPORT int dup3(int fd, int to, int flags)
{
	int saved = errno, ret;
	const struct device *device = device_of(fd), *gone = device_of(to);
	uint64_t start = device || gone ? now() : 0;

	errno = saved;
	ret = real_dup3()(fd, to, flags);
	duplicated(device, gone, fd, ret, start);
	return ret;
}

#define FCNTL(name)                                                                                           \
	EXPORT int name(int fd, int command, ...)                                                             \
	{                                                                                                     \
		bool dups = command == F_DUPFD || command == F_DUPFD_CLOEXEC;                                 \
		const struct device *device;                                                                  \
		int saved = errno, ret;                                                                       \
		uint64_t start;                                                                               \
		va_list list;                                                                                 \
		void *arg;                                                                                    \
                                                                                                              \
		va_start(list, command);                                                                      \
		arg = va_arg(list, void *);                                                                   \
		va_end(list);                                                                                 \
		device = dups ? device_of(fd) : NULL;                                                         \
		start = device ? now() : 0;                                                                   \
		errno = saved;                                                                                \
		ret = real_##name()(fd, command, arg);                                                        \
		if (device)                                                                                   \
			duplicated(device, NULL, fd, ret, start);                                             \
		return ret;                                                                                   \
	}

FCNTL(fcntl)
FCNTL(fcntl64)
struct linux_dirent64 {
	uint64_t ino;
	int64_t offset;
	uint16_t size;
	uint8_t type;
	char name[];
};

/* Devices that were open before this program began. */
static void inherited(void)
{
	_Alignas(8) unsigned char entries[4096];
	const struct device *device;
	long at, n;
	int dir, fd;

	dir = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (dir < 0)
		return;
	while ((n = syscall(SYS_getdents64, dir, entries, sizeof(entries))) > 0) {
		for (at = 0; at < n;) {
			const struct linux_dirent64 *entry = (const void *)(entries + at);
			const char *c;

			at += entry->size;
			fd = 0;
			for (c = entry->name; *c >= '0' && *c <= '9' && fd < INT_MAX / 10 - 1; c++)
				fd = fd * 10 + (*c - '0');
			if (*c || c == entry->name || fd == dir)
				continue;
			device = device_of(fd);
			if (device)
				fd_event(FRAME_FD, device, fd, fd, now());
		}
	}
	syscall(SYS_close, dir);
}
static void forked(void)
{
	int saved = errno;

	spool_forked();
	process_event(FLAG_FORKED);
	errno = saved;
}

static __attribute__((constructor)) void begin(void)
{
	const char *path = getenv("NVPROXY_TRACE_SPOOL");
	int saved = errno;

	if (path && spool_open(path)) {
		look_begin();
		process_event(0);
		inherited();
		pthread_atfork(NULL, NULL, forked);
	}
	errno = saved;
}
