// SPDX-License-Identifier: Apache-2.0
/* What the recorder is tried on: `program SCENARIO [N]`. Prints what it saw itself, so that runs can be compared. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RM_CONTROL 0xc020462aul
#define RM_ALLOC 0xc030462bul

extern char **environ;

struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

static int control(int fd, uint32_t cmd, void *params, uint32_t size, uint32_t *status)
{
	struct control c = { 0xc1d00001, 0xc1d00001, cmd, 0, (uintptr_t)params, size, 0 };
	int ret = ioctl(fd, RM_CONTROL, &c);

	if (status)
		*status = c.status;
	return ret;
}

static int controls(int fd, int n)
{
	unsigned char params[64];
	int i, bad = 0;

	for (i = 0; i < n; i++) {
		memset(params, i & 0xff, sizeof(params));
		bad |= control(fd, 0x20800102, params, sizeof(params), NULL);
	}
	return bad;
}

static int fds, calls;

static void *thread(void *unused)
{
	(void)unused;
	return (void *)(intptr_t)controls(fds, calls);
}

static int one_of_each(int fd)
{
	unsigned char params[8] = { 0 }, device[56] = { 0 };
	char driver[64] = "", version[64] = "", title[64] = "";
	struct { uint32_t size, pad; uint64_t d, v, t; uint32_t a, b; } build = {
		sizeof(driver), 0, (uintptr_t)driver, (uintptr_t)version, (uintptr_t)title, 0, 0
	};
	struct { uint32_t root, parent, new, class; uint64_t params, rights; uint32_t size, flags, status, pad; } alloc = {
		.root = 0xc1d00001, .parent = 0xc1d00001, .class = 0x80, .params = (uintptr_t)device
	};
	struct { uint64_t flags; uint32_t status, pad; } init = { 0, 0xff, 0 };
	uint32_t status;
	int uvm, ret, e;

	ret = control(fd, 0x20800ffe, params, 8, &status);
	printf("control %d %#x\n", ret, status);
	ret = control(fd, 0x101, &build, sizeof(build), &status);
	printf("build %d %s\n", ret, driver);
	ret = ioctl(fd, RM_ALLOC, &alloc);
	printf("alloc %d %#x\n", ret, alloc.new);
	errno = 0;
	ret = ioctl(fd, 0xc0104663ul, params);
	e = errno;
	printf("unknown %d %d\n", ret, e);
	errno = 0;
	ret = ioctl(fd, RM_CONTROL, (void *)8);
	e = errno;
	printf("fault %d %d\n", ret, e);
	ret = control(fd, 0x20800102, NULL, 0, &status);
	printf("null %d %#x\n", ret, status);
	uvm = open("/dev/nvidia-uvm", O_RDWR);
	ret = ioctl(uvm, 0x30000001ul, &init);
	printf("uvm %d %d\n", ret, (int)init.status);
	errno = 77;
	ret = control(fd, 0x20800102, params, 8, &status);
	printf("errno %d\n", errno);
	ret = open("/dev/nvidia-modeset", O_RDWR);
	e = errno;
	printf("modeset %d %d\n", ret, e);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 1, i, status, fd;
	pthread_t threads[8];
	void *map;
	pid_t pid;

	if (!strcmp(what, "inherited"))
		return controls(n, 3);
	fd = open("/dev/nvidiactl", O_RDWR);
	printf("fd %d\n", fd);
	fflush(stdout);
	if (!strcmp(what, "each"))
		return one_of_each(fd);
	if (!strcmp(what, "calls"))
		return controls(fd, n);
	if (!strcmp(what, "threads")) {
		fds = fd;
		calls = n;
		for (i = 0; i < 8; i++)
			pthread_create(&threads[i], NULL, thread, NULL);
		for (i = 0; i < 8; i++)
			pthread_join(threads[i], NULL);
		return 0;
	}
	if (!strcmp(what, "fork")) {
		for (i = 0; i < 4; i++)
			if (!fork())
				_exit(controls(fd, n) & 1);
		while (wait(&status) > 0)
			;
		return controls(fd, n);
	}
	if (!strcmp(what, "exec")) {
		char number[16];

		snprintf(number, sizeof(number), "%d", fd);
		execl(argv[0], argv[0], "inherited", number, (char *)NULL);
		return 1;
	}
	if (!strcmp(what, "vfork")) {
		char number[16];

		snprintf(number, sizeof(number), "%d", fd);
		pid = vfork();
		if (!pid) {
			execl(argv[0], argv[0], "inherited", number, (char *)NULL);
			_exit(1);
		}
		waitpid(pid, &status, 0);
		return controls(fd, n);
	}
	if (!strcmp(what, "spawn")) {
		char *args[] = { argv[2], NULL };

		if (posix_spawn(&pid, argv[2], NULL, NULL, args, environ))
			return 1;
		waitpid(pid, &status, 0);
		execv("/nonexistent", args);
		return controls(fd, 1);
	}
	if (!strcmp(what, "kill")) {
		controls(fd, n);
		kill(getpid(), SIGKILL);
	}
	if (!strcmp(what, "hang")) {
		alarm(1);
		signal(SIGALRM, SIG_DFL);
		control(fd, 0xdead, NULL, 0, NULL);
	}
	if (!strcmp(what, "closefrom")) {
		controls(fd, n);
		syscall(SYS_close_range, 3u, ~0u, 0u);
		fd = open("/tmp", O_RDONLY);
		printf("again %d\n", fd);
		fd = open("/dev/nvidiactl", O_RDWR);
		return controls(fd, n);
	}
	if (!strcmp(what, "squat")) {
		/* A program that takes every number: what it holds there must stay its own. */
		int mine = memfd_create("mine", 0);
		struct stat st;

		controls(fd, n);
		for (i = 900; i < 1024; i++)
			dup2(mine, i);
		controls(fd, n);
		fstat(mine, &st);
		printf("mine %d bytes\n", (int)st.st_size);
		return 0;
	}
	if (!strcmp(what, "lost")) {
		/* The spool is gone: nothing can be recorded, and nothing of that may show. */
		unlink(argv[2]);
		syscall(SYS_close_range, 3u, ~0u, 0u);
		fd = open("/dev/nvidiactl", O_RDWR);
		errno = 77;
		i = controls(fd, 3);
		printf("ok %d errno %d\n", i, errno);
		i = ioctl(fd, 0xc0104663ul, &n);
		printf("unknown %d errno %d\n", i, errno);
		errno = 78;
		close(fd);
		printf("closed errno %d\n", errno);
		return 0;
	}
	if (!strcmp(what, "over")) {
		i = open("/dev/nvidia0", O_RDWR);
		dup2(i, fd);
		return controls(fd, n);
	}
	if (!strcmp(what, "dup")) {
		i = dup(fd);
		dup2(i, 40);
		fcntl(40, F_DUPFD_CLOEXEC, 50);
		close(fd);
		return controls(50, n);
	}
	if (!strcmp(what, "map")) {
		fd = open("/dev/nvidia0", O_RDWR);
		map = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
		printf("map %d\n", map != MAP_FAILED);
		return 0;
	}
	if (!strcmp(what, "raw")) {
		struct control c = { 1, 1, 0x20800102, 0, 0, 0, 0 };

		for (i = 0; i < n; i++)
			syscall(SYS_ioctl, fd, RM_CONTROL, &c);
		return 3;
	}
	return 9;
}
