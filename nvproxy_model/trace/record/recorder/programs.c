// SPDX-License-Identifier: Apache-2.0
/*
 * Every way to start a program through libc. glibc's own calls from one to another do not pass here (execl reaches the kernel
 * without execve), so each is interposed.
 *
 * An exec is written before it happens, and again with its errno when it came back. The new program's own first frame is
 * missing when it is static or setuid, was given an environment without us, or may not open the spool.
 */
#define _GNU_SOURCE
#include "programs.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

REAL(execve, int, const char *, char *const[], char *const[])
REAL(execv, int, const char *, char *const[])
REAL(execvp, int, const char *, char *const[])
REAL(execvpe, int, const char *, char *const[], char *const[])
REAL(fexecve, int, int, char *const[], char *const[])
REAL(execveat, int, int, const char *, char *const[], char *const[], int)
REAL(posix_spawn, int, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
     char *const[])
REAL(posix_spawnp, int, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
     char *const[])
REAL(system, int, const char *)
REAL(popen, FILE *, const char *, const char *)

static void exec_event(const char *path, uint32_t pid, int err, uint16_t flags, uint64_t time)
{
	struct frame frame;
	char text[PATH_MAX];
	ssize_t size;
	int saved = errno;

	if (spool_active()) {
		frame_begin(&frame, FRAME_EXEC);
		frame.time = time;
		frame.err = (uint32_t)err;
		frame.flags = flags;
		if (!spool_allowed())
			frame.flags |= FLAG_DENIED;
		if (pid)
			frame.pid = pid;
		size = copy_string(text, path, sizeof(text));
		frame_send(&frame, text, size < 0 ? 0 : (size_t)size, NULL, 0);
	}
	errno = saved;
}

#define EXEC(call)                                           \
	do {                                                 \
		int exec_ret;                                \
		exec_event(path, 0, 0, 0, now());            \
		exec_ret = call;                             \
		exec_event(path, 0, errno, 0, now());        \
		return exec_ret;                             \
	} while (0)

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
	EXEC(real_execve()(path, argv, envp));
}

EXPORT int execv(const char *path, char *const argv[])
{
	EXEC(real_execv()(path, argv));
}

EXPORT int execvp(const char *path, char *const argv[])
{
	EXEC(real_execvp()(path, argv));
}

EXPORT int execvpe(const char *path, char *const argv[], char *const envp[])
{
	EXEC(real_execvpe()(path, argv, envp));
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
	const char *path = "(by descriptor)";

	EXEC(real_fexecve()(fd, argv, envp));
}

/* glibc 2.34 */
EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags);
EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags)
{
	EXEC(real_execveat() ? real_execveat()(dir, path, argv, envp, flags) :
			       (int)syscall(SYS_execveat, dir, path, argv, envp, flags));
}

/* The arguments of execl and its kin as an array, NULL included. */
#define GATHER(argv, list, first)                                             \
	size_t arguments = 1, at;                                             \
	va_list list;                                                         \
	va_start(list, first);                                                \
	while (arguments < INT_MAX && va_arg(list, char *))                   \
		arguments++;                                                  \
	va_end(list);                                                         \
	char *argv[arguments + 1];                                            \
	va_start(list, first);                                                \
	argv[0] = (char *)(uintptr_t)first;                                   \
	for (at = 1; at <= arguments; at++)                                   \
		argv[at] = va_arg(list, char *)

EXPORT int execl(const char *path, const char *first, ...)
{
	GATHER(argv, list, first);
	va_end(list);
	EXEC(real_execv()(path, argv));
}

EXPORT int execlp(const char *path, const char *first, ...)
{
	GATHER(argv, list, first);
	va_end(list);
	EXEC(real_execvp()(path, argv));
}

EXPORT int execle(const char *path, const char *first, ...)
{
	char *const *envp;

	GATHER(argv, list, first);
	envp = va_arg(list, char *const *);
	va_end(list);
	EXEC(real_execve()(path, argv, envp));
}

/* The time is that of the call: the child may have spoken before we can. */
#define SPAWN(name)                                                                                             \
	EXPORT int name(pid_t *restrict pid, const char *restrict path,                                         \
			const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict attr, \
			char *const argv[restrict], char *const envp[restrict])                                  \
	{                                                                                                       \
		uint64_t start = now();                                                                         \
		pid_t child = 0;                                                                                \
		int ret = real_##name()(&child, path, actions, attr, argv, envp);                               \
                                                                                                                \
		if (!ret) {                                                                                     \
			if (pid)                                                                                \
				*pid = child;                                                                   \
			exec_event(path, (uint32_t)child, 0, 0, start);                                         \
		}                                                                                               \
		return ret;                                                                                     \
	}

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* Their shell's number is not ours to know; its own first frame names us as its parent. */
EXPORT int system(const char *command)
{
	if (command)
		exec_event(command, 0, 0, FLAG_SHELL, now());
	return real_system()(command);
}

EXPORT FILE *popen(const char *command, const char *type)
{
	uint64_t start = now();
	FILE *file = real_popen()(command, type);

	if (file)
		exec_event(command, 0, 0, FLAG_SHELL, start);
	return file;
}

void process_event(uint16_t flags)
{
	char text[PATH_MAX];
	struct frame frame;
	ssize_t n = 0;
	int fd;

	frame_begin(&frame, FRAME_PROCESS);
	frame.flags = flags;
	frame.args[0] = (uint64_t)syscall(SYS_getppid);
	fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0) {
		n = syscall(SYS_read, fd, text, sizeof(text) - 1);
		syscall(SYS_close, fd);
	}
	frame_send(&frame, text, n > 0 ? (size_t)n : 0, NULL, 0);
}
