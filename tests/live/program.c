// Programs that the broker watches: program NODES CASE [ARGUMENT]. Each prints what it saw; 0 unless it could not try.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct alloc { // NVOS64_PARAMETERS
	uint32_t root, parent, new, class;
	uint64_t params, rights;
	uint32_t size, flags, status, pad;
};
struct control { // NVOS54_PARAMETERS
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};
struct os_event { uint32_t client, device, fd, status; };
struct buffer { // NV_EVENT_BUFFER_ALLOC_PARAMETERS
	uint64_t header, record;
	uint32_t record_size, record_count;
	uint64_t vardata;
	uint32_t vardata_size, records_free;
	uint64_t notification;
	uint32_t vardata_free, subdevice, flags, h_header, h_record, h_vardata;
};
enum { ALLOC = (int)0xC030462B, CONTROL = (int)0xC020462A, FREE = (int)0xC0104629, OS_EVENT = (int)0xC01046CE };

static const char *nodes;

static int node(const char *name, int flags)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/%s", nodes, name);
	return open(path, flags);
}

static int ctl(void) { return node("nvidiactl", O_RDWR | O_CLOEXEC); }

static uint32_t alloc(int fd, uint32_t root, uint32_t parent, uint32_t new, uint32_t class, void *params, uint32_t size, uint32_t *status)
{
	struct alloc a = { root, parent, new, class, (uintptr_t)params, 0, size, 0, 0xdead, 0 };
	int ret = ioctl(fd, ALLOC, &a);
	*status = ret ? 0x10000u + errno : a.status;
	return a.new;
}

static uint32_t client(int fd)
{
	uint32_t status, handle = alloc(fd, 0, 0, 0, 0x41, NULL, 0, &status);
	if (status)
		printf("client: %x\n", status);
	return handle;
}

static uint32_t device(int fd, uint32_t root, uint32_t handle)
{
	unsigned char params[56] = { 0 };
	uint32_t status;
	alloc(fd, root, root, handle, 0x80, params, sizeof(params), &status);
	return status;
}

static uint32_t control(int fd, uint32_t root, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct control c = { root, object, cmd, 0, (uintptr_t)params, size, 0xdead };
	return ioctl(fd, CONTROL, &c) ? 0x10000u + errno : c.status;
}

static uint32_t release(int fd, uint32_t root, uint32_t object)
{
	uint32_t f[4] = { root, 0, object, 0xdead };
	return ioctl(fd, FREE, f) ? 0x10000u + errno : f[3];
}

// A control that every release admits and that needs nothing: NV0000_CTRL_CMD_SYSTEM_GET_FEATURES.
static uint32_t quick(int fd, uint32_t root)
{
	uint32_t params[4] = { 0 };
	return control(fd, root, root, 0x1f0, params, 4);
}

static void chain(void)
{
	int fd = ctl(), events = ctl();
	uint32_t root = client(fd), status;
	node("nvidia0", O_RDWR | O_CLOEXEC); // without it a real driver makes no device
	printf("device %x\n", device(fd, root, 0x80001));
	uint32_t sub[1] = { 0 };
	alloc(fd, root, 0x80001, 0x80002, 0x2080, sub, sizeof(sub), &status);
	printf("subdevice %x\n", status);
	for (int i = 0; i < 3; i++) {
		unsigned char memory[MEMORY_SIZE] = { 0 };
		memory[MEMORY_ATTR2 + 2] = 0x40; // NVOS32_ATTR2_PROTECTION_USER_READ_ONLY
		memory[MEMORY_BYTES + 1] = 0x10;
		alloc(fd, root, root, 0x90001 + i, 0x90ce, memory, sizeof(memory), &status);
		printf("memory %x\n", status);
	}
	struct os_event event = { root, 0, (uint32_t)events, 0xdead };
	printf("os event %d", ioctl(fd, OS_EVENT, &event));
	printf(" %x fd %s\n", event.status, event.fd == (uint32_t)events ? "kept" : "changed");
	struct buffer buffer = { .record_size = 0x20, .record_count = 4, .notification = (uint64_t)events,
		.subdevice = 0x80002, .h_header = 0x90001, .h_record = 0x90002 };
	alloc(fd, root, root, 0xa0001, 0x90cd, &buffer, sizeof(buffer), &status);
	printf("event buffer %x handle %s\n", status, buffer.notification == (uint64_t)events ? "kept" : "changed");
	printf("free %x\n", release(fd, root, 0x90002));
	printf("client %x\n", release(fd, root, root));
}

static void refusals(void)
{
	int fd = ctl();
	uint32_t root = client(fd), status;
	alloc(fd, root, root, 0, 0xc639, NULL, 0, &status);
	printf("class %x\n", status);
	printf("control %x\n", control(fd, root, root, 0x90cd0101, NULL, 0));
	printf("escape %d", ioctl(fd, 0xC00446D7, &root));
	printf(" %d\n", errno);
	printf("modeset %d", node("nvidia-modeset", O_RDWR));
	printf(" %d\n", errno);
	char path[4096];
	snprintf(path, sizeof(path), "%s/sub/../nvidia-modeset", nodes);
	printf("dotted %d", open(path, O_RDWR));
	printf(" %d\n", errno);
	int here = open(nodes, O_RDONLY | O_DIRECTORY);
	printf("relative %d", openat(here, "nvidia-modeset", O_RDWR));
	printf(" %d\n", errno);
	snprintf(path, sizeof(path), "/proc/self/fd/%d/nvidia-modeset", here);
	printf("self %d", open(path, O_RDWR));
	printf(" %d\n", errno);
	snprintf(path, sizeof(path), "%s/link", nodes);
	printf("link %d", open(path, O_RDWR));
	printf(" %d\n", errno);
	printf("absent %d", node("nothing", O_RDWR));
	printf(" %d\n", errno);
	printf("fault %d", ioctl(fd, ALLOC, (void *)16));
	printf(" %d\n", errno);
	struct control *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*low = (struct control){ root, root, 0x1f0, 0, (uintptr_t)low + 64, 4, 0 };
	mprotect(low, 4096, PROT_READ);
	printf("read-only %d", ioctl(fd, CONTROL, low));
	printf(" %d\n", errno);
}

static atomic_int failures;

static void *worker(void *arg)
{
	int n = *(int *)arg, fd = ctl();
	uint32_t root = client(fd);
	for (int i = 0; i < n; i++)
		if (device(fd, root, 0x80000u + i) || release(fd, root, 0x80000u + i))
			failures++;
	close(fd);
	return NULL;
}

static void threads(int n)
{
	pthread_t all[8];
	for (int i = 0; i < 8; i++)
		pthread_create(&all[i], NULL, worker, &n);
	for (int i = 0; i < 8; i++)
		pthread_join(all[i], NULL);
	printf("failures %d\n", failures);
}

static void inherited(void)
{
	int fd = node("nvidiactl", O_RDWR); // survives exec
	uint32_t root = client(fd);
	if (!fork()) {
		printf("child %x\n", device(fd, root, 0x80001));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	printf("parent sees %x\n", release(fd, root, 0x80001));
	int again = dup(fd);
	close(fd);
	printf("dup %x\n", device(again, root, 0x80002));
	char number[16], handle[16];
	snprintf(number, sizeof(number), "%d", again);
	snprintf(handle, sizeof(handle), "%u", root);
	fflush(stdout);
	if (!vfork()) {
		execl("/proc/self/exe", "program", nodes, "after-exec", number, handle, NULL);
		_exit(9);
	}
	wait(NULL);
	printf("after %x\n", device(again, root, 0x80004));
}

static void *exec_thread(void *arg)
{
	execl("/proc/self/exe", "program", nodes, "after-exec", ((char **)arg)[0], ((char **)arg)[1], NULL);
	return NULL;
}

static void exec_from_thread(void)
{
	int fd = node("nvidiactl", O_RDWR);
	uint32_t root = client(fd);
	static char number[16], handle[16];
	char *args[] = { number, handle };
	snprintf(number, sizeof(number), "%d", fd);
	snprintf(handle, sizeof(handle), "%u", root);
	pthread_t thread;
	pthread_create(&thread, NULL, exec_thread, args);
	pthread_join(thread, NULL);
}

static int shared_files(void *arg)
{
	(void)arg;
	dup2(ctl(), 77);
	uint32_t root = client(77);
	char text[32];
	printf("clone %x\n", device(77, root, 0x80001));
	snprintf(text, sizeof(text), "%u", root);
	setenv("ROOT", text, 1);
	FILE *out = fopen(getenv("HANDOVER"), "w");
	fputs(text, out);
	fclose(out);
	fflush(stdout);
	return 0;
}

static void clone_files(void)
{
	static char stack[1 << 16];
	int pid = clone(shared_files, stack + sizeof(stack), CLONE_FILES | SIGCHLD, NULL);
	waitpid(pid, NULL, 0);
	FILE *in = fopen(getenv("HANDOVER"), "r");
	unsigned root = 0;
	if (!in || fscanf(in, "%u", &root) != 1)
		exit(1);
	printf("parent %x\n", release(77, root, 0x80001));
}

static void passed(void)
{
	int pair[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	if (!fork()) {
		int fd = ctl();
		uint32_t root = client(fd);
		struct iovec data = { &root, 4 };
		union { char raw[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } c = { { 0 } };
		struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = c.raw, .msg_controllen = sizeof(c.raw) };
		*CMSG_FIRSTHDR(&message) = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(int));
		sendmsg(pair[0], &message, 0);
		_exit(0);
	}
	uint32_t root;
	struct iovec data = { &root, 4 };
	char raw[CMSG_SPACE(sizeof(int))];
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = raw, .msg_controllen = sizeof(raw) };
	recvmsg(pair[1], &message, 0);
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	wait(NULL);
	printf("passed %x\n", device(fd, root, 0x80001));
	close(fd);
	fd = ctl();
	printf("its client ended with it %x\n", device(fd, root, 0x80002));
}

static void gpu(void)
{
	int fd = ctl();
	uint32_t root = client(fd);
	printf("without %x\n", device(fd, root, 0x80001));
	node("nvidia0", O_RDWR);
	printf("with %x\n", device(fd, root, 0x80002));
}

static void chrooted(const char *root)
{
	if (chroot(root) || chdir("/"))
		exit(1);
	nodes = "/dev";
	printf("modeset %d", node("nvidia-modeset", O_RDWR));
	printf(" %d\n", errno);
	printf("control device %s\n", ctl() < 0 ? "fails" : "opens");
}

static void ends(void)
{
	for (int i = 0; i < 3; i++) {
		int fd = ctl();
		printf("client %s", client(fd) ? "made" : "none");
		close(fd);
		// A FIFO without a writer reads as its end: nobody holds the file that was closed.
		char byte;
		int reader = node("nvidiactl", O_RDONLY | O_NONBLOCK);
		printf(" read %zd\n", read(reader, &byte, 1));
		close(reader);
	}
}

static void *closer(void *arg)
{
	close(*(int *)arg);
	return NULL;
}

static void races(int n)
{
	int odd = 0;
	for (int i = 0; i < n; i++) {
		int fd = ctl();
		uint32_t root = client(fd), status;
		pthread_t thread;
		pthread_create(&thread, NULL, closer, &fd);
		status = device(fd, root, 0x80001);
		pthread_join(thread, NULL);
		odd += status != 0 && status != 0x10000u + EBADF;
	}
	printf("odd %d\n", odd);
}

static atomic_int ticks;

static void tick(int number)
{
	(void)number;
	ticks++;
}

static void signals(int n)
{
	struct sigaction action = { .sa_handler = tick };
	sigaction(SIGALRM, &action, NULL);
	int fd = ctl();
	uint32_t root = client(fd);
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
	setitimer(ITIMER_REAL, &timer, NULL);
	int bad = 0, before = 0;
	for (int i = 0; i < n; i++) {
		uint32_t status = quick(fd, root);
		if (status == 0x10000u + EINTR)
			before++; // nobody had received it yet: it was never made
		else
			bad += status != 0;
	}
	timer = (struct itimerval){ 0 };
	setitimer(ITIMER_REAL, &timer, NULL);
	printf("bad %d ticked %d before %d\n", bad, ticks > 0, before);
}

static volatile struct control shared;
static atomic_int stop;

static void *rewriter(void *arg)
{
	(void)arg;
	while (!stop) {
		shared.cmd = 0x90cd0101;
		shared.cmd = 0x1f0;
	}
	return NULL;
}

static void rewriting(int n)
{
	int fd = ctl();
	uint32_t root = client(fd), params[4] = { 0 };
	pthread_t thread;
	shared = (struct control){ root, root, 0x1f0, 0, (uintptr_t)params, 4, 0 };
	pthread_create(&thread, NULL, rewriter, NULL);
	for (int i = 0; i < n; i++)
		ioctl(fd, CONTROL, &shared);
	stop = 1;
	pthread_join(thread, NULL);
	printf("done\n");
}

static void *slow(void *arg)
{
	uint32_t root = client(*(int *)arg);
	printf("slow %x\n", quick(*(int *)arg, root));
	return NULL;
}

static void two(void)
{
	int one = ctl(), other = ctl();
	pthread_t a, b;
	pthread_create(&a, NULL, slow, &one);
	pthread_create(&b, NULL, slow, &other);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void foreign(void)
{
	int fd = ctl();
	struct control c = { 0 };
	long ret = -1;
#ifdef __x86_64__
	ret = syscall(0x40000000 | 514, fd, CONTROL, &c);
	printf("x32 %ld %d\n", ret, errno);
	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(54L), "b"((long)fd), "c"((long)CONTROL), "d"(0L) : "memory");
	printf("int80 %ld\n", ret);
#endif
	ret = syscall(425, 4, &c);
	printf("io_uring %ld %d\n", ret, errno);
}

static void elsewhere(int n)
{
	int zero = open("/dev/zero", O_RDONLY), pty = posix_openpt(O_RDWR | O_NOCTTY);
	char byte;
	for (int i = 0; i < n; i++) {
		struct { unsigned short a, b, c, d; } size;
		if (ioctl(pty, TIOCGWINSZ, &size) || read(zero, &byte, 1) != 1)
			exit(1);
	}
	printf("done\n");
}

static void in_place(uint32_t handle)
{
	int fd = ctl();
	struct alloc a = { .class = 0x41 };
	printf("client %d", ioctl(fd, ALLOC, &a));
	printf(" %d\n", errno);
	printf("device %x\n", device(fd, handle, 0x80001));
}

static void dmabuf(void)
{
	int fd = ctl(), made;
	uint32_t root = client(fd);
	static char export[EXPORT_SIZE];
	memcpy(export + EXPORT_CLIENT, &root, 4);
	memset(export + EXPORT_FD, 0xff, 4);
	int ret = ioctl(fd, (int)(0xC00046D9u | EXPORT_SIZE << 16), export);
	memcpy(&made, export + EXPORT_FD, 4);
	printf("export %d %s cloexec %d", ret, made > fd ? "descriptor" : "none", fcntl(made, F_GETFD));
	uint64_t value = 0;
	printf(" read %zd", read(made, &value, 8));
	printf(" %d\n", (int)value);
	printf("again %d", ioctl(fd, (int)(0xC00046D9u | EXPORT_SIZE << 16), export));
	memcpy(&ret, export + EXPORT_FD, 4);
	printf(" %s\n", ret == made ? "kept" : "changed");
}

static void hang(void)
{
	int fd = ctl();
	client(fd);
	if (!fork()) {
		if (!fork())
			pause();
		pause();
	}
	printf("%d\n", getpid());
	fflush(stdout);
	pause();
}

static void wait_then(int status)
{
	int fd = ctl();
	uint32_t root = client(fd);
	printf("ready\n");
	fflush(stdout);
	getchar();
	printf("control %x\n", quick(fd, root));
	exit(status);
}

static void many(int n)
{
	int bad = 0, fds[512];
	for (int i = 0; i < n; i++) {
		fds[i] = ctl();
		uint32_t status;
		alloc(fds[i], 0, 0, 0, 0x41, NULL, 0, &status);
		bad += status != 0;
	}
	printf("bad %d\n", bad);
}

static void calls(int n)
{
	int fd = ctl(), bad = 0;
	uint32_t root = client(fd);
	for (int i = 0; i < n; i++)
		bad += quick(fd, root) != 0;
	printf("bad %d\n", bad);
}

static void opens(int n)
{
	for (int i = 0; i < n; i++)
		close(open("/etc/hostname", O_RDONLY | O_CLOEXEC));
}

// For benchmarks: how long one took, start-up left out.
static void timed(void (*what)(int), int n)
{
	struct timespec a, b;
	what(1);
	clock_gettime(CLOCK_MONOTONIC, &a);
	what(n);
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%.3f us each\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 1e3 / n);
}

// Commands on standard input, answers on standard output: 'w' offset size bytes; 'i' fd request address -> errno, the arena.
static void obey(void)
{
	unsigned char *arena = mmap((void *)0x10000000, 0x8000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	int fds[4] = { node("nvidiactl", O_RDWR), node("nvidia0", O_RDWR), node("nvidia-uvm", O_RDWR), open("/dev/null", O_RDWR) };
	for (int i = 0; i < 4; i++)
		dup2(fds[i], 100 + i);
	uint64_t word[4];
	while (fread(word, 8, 4, stdin) == 4) {
		if (word[0] == 'w') {
			if (fread(arena + word[1], 1, word[2], stdin) != word[2])
				return;
			continue;
		}
		if (word[0] == 'z') {
			memset(arena, 0, 0x8000);
			continue;
		}
		int32_t error = ioctl((int)word[1], (unsigned)word[2], word[3]) < 0 ? errno : 0;
		fwrite(&error, 4, 1, stdout);
		fwrite(arena, 1, 0x8000, stdout);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	nodes = argv[1];
	const char *what = argv[2];
	int n = argc > 3 ? atoi(argv[3]) : 0;
	if (!strcmp(what, "chain")) chain();
	else if (!strcmp(what, "refusals")) refusals();
	else if (!strcmp(what, "threads")) threads(n);
	else if (!strcmp(what, "inherited")) inherited();
	else if (!strcmp(what, "exec-from-thread")) exec_from_thread();
	else if (!strcmp(what, "after-exec")) printf("exec %x\n", device(n, (uint32_t)strtoul(argv[4], NULL, 10), 0x80003));
	else if (!strcmp(what, "clone")) clone_files();
	else if (!strcmp(what, "passed")) passed();
	else if (!strcmp(what, "ends")) ends();
	else if (!strcmp(what, "gpu")) gpu();
	else if (!strcmp(what, "chrooted")) chrooted(argv[3]);
	else if (!strcmp(what, "races")) races(n);
	else if (!strcmp(what, "signals")) signals(n);
	else if (!strcmp(what, "rewriting")) rewriting(n);
	else if (!strcmp(what, "two")) two();
	else if (!strcmp(what, "foreign")) foreign();
	else if (!strcmp(what, "elsewhere")) elsewhere(n);
	else if (!strcmp(what, "in-place")) in_place((uint32_t)strtoul(argv[3], NULL, 0));
	else if (!strcmp(what, "dmabuf")) dmabuf();
	else if (!strcmp(what, "hang")) hang();
	else if (!strcmp(what, "wait")) wait_then(n);
	else if (!strcmp(what, "many")) many(n);
	else if (!strcmp(what, "calls")) calls(n);
	else if (!strcmp(what, "timed-calls")) timed(calls, n);
	else if (!strcmp(what, "timed-elsewhere")) timed(elsewhere, n);
	else if (!strcmp(what, "timed-opens")) timed(opens, n);
	else if (!strcmp(what, "obey")) obey();
	else if (!strcmp(what, "exit")) return n;
	else if (!strcmp(what, "die")) raise(n);
	else if (!strcmp(what, "opaque")) { prctl(PR_SET_DUMPABLE, 0); calls(n); }
	else return 2;
	return 0;
}
