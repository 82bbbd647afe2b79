// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that make recording hard: `attack SCENARIO [N|PATH...]`. What they print is what they see themselves; a recorder
 * must not change a byte of it. 0xd00d asks the fake driver to call back: what another thread may do during a call, at will.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

struct callback {
	void (*act)(void *);
	void *argument;
};

static int fd;

static int control(uint32_t cmd, void *params, uint32_t size)
{
	struct control c = { 0xc1d00001, 0xc1d00001, cmd, 0, (uintptr_t)params, size, 0 };

	return ioctl(fd, 0xc020462aul, &c) ? -errno : (int)c.status;
}

static int controls(int n)
{
	unsigned char params[64] = { 0 };
	int bad = 0;

	while (n-- > 0)
		bad |= control(0x20800102, params, sizeof(params));
	return bad;
}

static void limit(int what, rlim_t soft)
{
	struct rlimit r;

	getrlimit(what, &r);
	r.rlim_cur = soft;
	if (setrlimit(what, &r))
		perror("setrlimit");
}

static rlim_t address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu", &pages) != 1)
		exit(8);
	fclose(file);
	return (rlim_t)pages * 4096;
}

/* Takes the numbers that a recorder would hide a file at, and holds a file of its own there. */
static int mine;

static void take_over(void *unused)
{
	int i;

	(void)unused;
	syscall(SYS_close_range, 900u, ~0u, 0u);
	for (i = 900; i < 1024; i++)
		dup2(mine, i);
	fcntl(mine, F_DUPFD, 1000);
}

static void unmap(void *page)
{
	munmap(page, 4096);
}

static void *new_page(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static unsigned char *flipping;
static atomic_int running = 1;

static void *flip(void *unused)
{
	(void)unused;
	while (running) {
		munmap(flipping, 4096);
		mmap(flipping, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	return NULL;
}

static void *caller(void *n)
{
	return (void *)(intptr_t)controls((int)(intptr_t)n);
}

static atomic_int calling, forked;

/* At least N calls, and on until the process has forked. */
static void *caller_across_fork(void *n)
{
	int bad = controls(1);

	atomic_fetch_add(&calling, 1);
	bad |= controls((int)(intptr_t)n - 1);
	while (!atomic_load(&forked))
		bad |= controls(1);
	return (void *)(intptr_t)bad;
}

static void *exec_in_thread(void *path)
{
	execl(path, path, (char *)NULL);
	return NULL;
}

static void start(const char *how, char *path)
{
	char *args[] = { path, NULL }, command[4096];
	pthread_t thread;
	int status;
	pid_t pid;
	FILE *out;

	snprintf(command, sizeof(command), "exec %s", path);
	if (!strcmp(how, "execv"))
		execv(path, args);
	if (!strcmp(how, "execve"))
		execve(path, args, environ);
	if (!strcmp(how, "execvp"))
		execvp(path, args);
	if (!strcmp(how, "execvpe"))
		execvpe(path, args, environ);
	if (!strcmp(how, "execl"))
		execl(path, path, (char *)NULL);
	if (!strcmp(how, "execlp"))
		execlp(path, path, (char *)NULL);
	if (!strcmp(how, "execle"))
		execle(path, path, (char *)NULL, environ);
	if (!strcmp(how, "fexecve"))
		fexecve(open(path, O_RDONLY | O_CLOEXEC), args, environ);
	if (!strcmp(how, "execveat"))
		execveat(AT_FDCWD, path, args, environ, 0);
	if (!strcmp(how, "thread")) {
		pthread_create(&thread, NULL, exec_in_thread, path);
		pthread_join(thread, NULL);
	}
	if (!strcmp(how, "posix_spawn") && !posix_spawn(&pid, path, NULL, NULL, args, environ))
		waitpid(pid, &status, 0);
	if (!strcmp(how, "posix_spawnp") && !posix_spawnp(&pid, path, NULL, NULL, args, environ))
		waitpid(pid, &status, 0);
	if (!strcmp(how, "vfork")) {
		pid = vfork();
		if (!pid) {
			execl(path, path, (char *)NULL);
			_exit(1);
		}
		waitpid(pid, &status, 0);
	}
	if (!strcmp(how, "system"))
		status = system(command);
	if (!strcmp(how, "popen")) {
		out = popen(command, "r");
		while (fgetc(out) != EOF)
			;
		pclose(out);
	}
	/* An environment without the recorder: the shell itself does not speak. */
	if (!strcmp(how, "system_bare")) {
		clearenv();
		status = system(command);
	}
	if (!strcmp(how, "execle_bare"))
		execle(path, path, (char *)NULL, (char *[]){ NULL });
}

/*
 * Threads that stop in the middle of a frame, for as long as we want: their copies of many pieces at once, which are made with a
 * window held, wait for an answer of ours. What they inherit, the first thread does not.
 */
#define STALLED 4

static int listener = -1;
static long release_after; /* milliseconds; 0: once the first thread says so */
static atomic_int released;

static void *stall(void *unused)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 1, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };
	pthread_t threads[STALLED];
	int i;

	(void)unused;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	for (i = 0; listener >= 0 && i < STALLED; i++)
		pthread_create(&threads[i], NULL, caller, (void *)1);
	for (i = 0; listener >= 0 && i < STALLED; i++)
		pthread_join(threads[i], NULL);
	return NULL;
}

/* Answers the beginnings once they are all there and may go on, and the ends as they come. */
static void *answer(void *ready)
{
	struct seccomp_notif asked[2 * STALLED];
	struct seccomp_notif_resp go = { .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
	int i, answered = 0;

	memset(asked, 0, sizeof(asked));
	for (i = 0; i < 2 * STALLED; i++) {
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked[i]))
			exit(7);
		if (i == STALLED - 1) {
			atomic_store((atomic_int *)ready, 1);
			if (release_after)
				usleep((useconds_t)release_after * 1000);
			else
				while (!atomic_load(&released))
					usleep(1000);
		}
		for (; i >= STALLED - 1 && answered <= i; answered++) {
			go.id = asked[answered].id;
			if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go))
				exit(7);
		}
	}
	return NULL;
}

static int stalled(int n)
{
	pthread_t first, second;
	atomic_int ready = 0;
	int bad;

	pthread_create(&first, NULL, stall, NULL);
	while (listener == -1)
		usleep(1000);
	if (listener < 0)
		return 1;
	pthread_create(&second, NULL, answer, &ready);
	while (!atomic_load(&ready))
		usleep(1000);
	bad = controls(n);
	atomic_store(&released, 1);
	pthread_join(second, NULL);
	pthread_join(first, NULL);
	return bad;
}

static int said(const char *what, int status)
{
	printf("%s %d\n", what, status);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 1, i, status;
	struct callback callback = { 0 };
	pthread_t threads[64];
	struct stat st;

	setvbuf(stdout, NULL, _IOLBF, 0);
	fd = open("/dev/nvidiactl", O_RDWR);
	printf("fd %d\n", fd);
	if (!strcmp(what, "plain"))
		return said("alive", controls(n));
	if (!strcmp(what, "fsize") || !strcmp(what, "fsize_ign")) {
		if (what[5])
			signal(SIGXFSZ, SIG_IGN);
		limit(RLIMIT_FSIZE, 4096);
		return said("alive", controls(n));
	}
	if (!strcmp(what, "as")) {
		limit(RLIMIT_AS, address_space());
		return said("alive", controls(n));
	}
	if (!strcmp(what, "nofile")) {
		limit(RLIMIT_NOFILE, 4);
		return said("alive", controls(n));
	}
	if (!strcmp(what, "drop")) {
		syscall(SYS_close_range, 3u, ~0u, 0u);
		if (setresuid(65534, 65534, 65534))
			perror("setresuid");
		fd = open("/dev/nvidiactl", O_RDWR);
		return said("alive", controls(n));
	}
	if (!strcmp(what, "drop_exec")) {
		if (setresuid(65534, 65534, 65534))
			perror("setresuid");
		execl(argv[2], argv[2], (char *)NULL);
		return said("not started", errno);
	}
	if (!strcmp(what, "chroot")) {
		if (chroot(argv[2]))
			perror("chroot");
		return said("alive", controls(20));
	}
	if (!strcmp(what, "steal")) {
		mine = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
		callback.act = take_over;
		printf("inside %d\n", control(0xd00d, &callback, sizeof(callback)));
		printf("after %d\n", controls(3));
		fstat(mine, &st);
		return said("bytes", (int)st.st_size);
	}
	if (!strcmp(what, "unmap")) {
		struct callback *page = new_page();

		*page = (struct callback){ unmap, page };
		return said("alive", control(0xd00d, page, sizeof(*page)));
	}
	if (!strcmp(what, "unmap_argument")) {
		struct control *page = new_page();

		callback = (struct callback){ unmap, page };
		*page = (struct control){ 1, 1, 0xd00d, 0, (uintptr_t)&callback, sizeof(callback), 0 };
		return said("alive", ioctl(fd, 0xc020462aul, page));
	}
	if (!strcmp(what, "unmap_race")) {
		flipping = new_page();
		pthread_create(&threads[0], NULL, flip, NULL);
		for (i = 0; i < n; i++)
			control(0x20800999, flipping, 64);
		running = 0;
		pthread_join(threads[0], NULL);
		return said("alive", 0);
	}
	if (!strcmp(what, "threads")) {
		for (i = 0; i < 64; i++)
			pthread_create(&threads[i], NULL, caller, (void *)(intptr_t)n);
		for (i = 0; i < 64; i++)
			pthread_join(threads[i], NULL);
		return said("alive", 0);
	}
	if (!strcmp(what, "stalled")) {
		release_after = atol(argv[3]);
		return said("alive", stalled(n));
	}
	if (!strcmp(what, "terminals")) {
		limit(RLIMIT_NOFILE, 1024);
		for (i = 0; i < n; i++) {
			int master = posix_openpt(O_RDWR | O_NOCTTY);
			struct winsize size;

			unlockpt(master);
			status = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
			if (status < 0 || ioctl(status, TIOCGWINSZ, &size))
				return said("no terminal", errno);
		}
		fd = open("/dev/nvidia0", O_RDWR);
		return said("alive", controls(2));
	}
	/*
	 * Forks while other threads are inside the recorder, each child the parent of the next. The threads neither begin nor end
	 * during the first fork: a beginning thread may hold the lock of ASan's allocator, and a child of GCC 12's ASan that
	 * is forked then waits for that lock for ever.
	 */
	if (!strcmp(what, "forks")) {
		for (i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, caller_across_fork, (void *)(intptr_t)200);
		while (atomic_load(&calling) < 4)
			sched_yield();
		for (i = 0; i < n; i++) {
			if (fork()) {
				atomic_store(&forked, 1);
				wait(&status);
				if (!i)
					for (i = 0; i < 4; i++)
						pthread_join(threads[i], NULL);
				return controls(2);
			}
			for (status = 0; i < 3 && status < 2; status++)
				pthread_create(&threads[status], NULL, caller, (void *)(intptr_t)200);
			if (i < 3)
				for (status = 0; status < 2; status++)
					pthread_join(threads[status], NULL);
		}
		return controls(2);
	}
	if (!strcmp(what, "large")) {
		unsigned char *params = calloc(1, 1 << 20);

		for (i = 0; i < n; i++)
			control(0x20800102, params, 1 << 20);
		free(params);
		return said("alive", 0);
	}
	if (!strcmp(what, "bad_pointers")) {
		const char *bad = (const char *)8;

		printf("open %d", open(bad, O_RDONLY));
		printf(" %d\n", errno);
		printf("openat %d", openat(AT_FDCWD, bad, O_RDONLY));
		printf(" %d\n", errno);
		printf("execve %d", execve(bad, argv, environ));
		printf(" %d\n", errno);
		return said("alive", controls(1));
	}
	if (!strcmp(what, "bytes")) {
		errno = 0;
		i = open("/dev/nvidia\xff\x1b[31m", O_RDWR);
		printf("open %d %d\n", i, errno);
		return said("alive", controls(n));
	}
	if (!strcmp(what, "start")) {
		fflush(stdout);
		start(argv[2], argv[3]);
		return 0;
	}
	return 9;
}
