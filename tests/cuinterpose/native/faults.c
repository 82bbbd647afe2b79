// SPDX-License-Identifier: Apache-2.0
/*
 * System calls that fail when they are told to, for the library of tickets and
 * frames: linked with -Wl,--wrap=NAME, so that its calls come here first.
 *
 * fault(NAME, skip, times, error): of the calls that follow, the first `skip` go
 * through, the next `times` fail with that errno, or, for error 0, are cut to half.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>

static struct fault {
	const char *name;
	int skip, times, error, met;
} faults[] = {
	{ .name = "pread" },  { .name = "pwrite" },	   { .name = "recvmsg" },   { .name = "sendmsg" },
	{ .name = "fcntl" },  { .name = "memfd_create" }, { .name = "getrandom" },
};

__attribute__((visibility("default"))) int fault(const char *name, int skip, int times, int error);
int fault(const char *name, int skip, int times, int error)
{
	for (unsigned int i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		if (strcmp(faults[i].name, name) == 0) {
			int met = faults[i].met;

			faults[i] = (struct fault){ faults[i].name, skip, times, error, 0 };
			return met;
		}
	return -1;
}

/* The fault that this call meets, or NULL. */
static const struct fault *next(const char *name)
{
	struct fault *found = faults;

	while (strcmp(found->name, name) != 0)
		found++;
	if (found->skip) {
		found->skip--;
		return NULL;
	}
	if (!found->times)
		return NULL;
	found->times--;
	found->met++;
	if (found->error)
		errno = found->error;
	return found;
}

#define WRAP(type, name, params, args)                   \
	type __real_##name params;                       \
	type __wrap_##name params;                       \
	type __wrap_##name params                        \
	{                                                \
		const struct fault *now = next(#name);   \
                                                         \
		if (now && now->error)                   \
			return -1;                       \
		type result = __real_##name args;        \
		return now && result > 0 ? result / 2 : result; \
	}

WRAP(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))

int __real_fcntl(int fd, int command, long argument);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
	va_list rest;

	va_start(rest, command);
	long argument = va_arg(rest, long);
	va_end(rest);
	return next("fcntl") ? -1 : __real_fcntl(fd, command, argument);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
	va_list rest;

	va_start(rest, number);
	long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
	va_end(rest);
	const struct fault *now = next(number == SYS_memfd_create ? "memfd_create" : "getrandom");
	if (now && now->error)
		return -1;
	long result = __real_syscall(number, a, b, c);
	return now ? result / 2 : result;
}
