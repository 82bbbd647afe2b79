// SPDX-License-Identifier: Apache-2.0
/*
 * The LD_PRELOAD recorder of nvproxy-trace: what a program does with /dev/nvidia*, as frames appended to a spool file.
 *
 * It knows no driver ABI. Which argument holds a command, a pointer, a size or a status comes from the table that the
 * launcher writes (nvproxy_model/trace/table.py) for the driver of the machine. Nothing here allocates, locks or uses
 * thread-local storage, so a call may come from any thread, a signal handler or a vfork child:
 *
 *  - A frame is assembled in a slot of a static pool and leaves in one write(2) on an O_APPEND file: frames of threads
 *    and processes never mix, and a SIGKILL loses no finished one. A call is two frames, so that the one a process died
 *    in is known too.
 *  - The spool is kept at a high descriptor and compared with its device and inode before each write: a program that
 *    closes every descriptor gets its numbers back, and its files get nothing of ours.
 *  - The kernel is asked before the call whether the program's memory can be read: a pointer that the driver would answer
 *    with EFAULT does not crash the program here. What could be read then is read again after it without asking.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* asm-generic/mman-common.h, Linux 5.14 */
#endif

#define EXPORT __attribute__((visibility("default")))

#define FRAME_MAGIC 0x5254564eu /* "NVTR" */
#define TABLE_MAGIC 0x5454564eu /* "NVTT" */
#define NONE 0xffffu
#define MAX_TOP 16384u
#define MAX_PARAMS (1u << 20) /* RMAPI_PARAM_COPY_MAX_PARAMS_SIZE */
#define MAX_BUFFERS (1u << 20)
#define MAX_POINTERS 4
#define SLOT_SIZE (MAX_TOP + MAX_PARAMS + MAX_BUFFERS + 16384u)
#define SLOTS 64
#define PAGE 4096u /* where pages are larger, populating fails with EINVAL and the slower way is taken */
#define BRIEF 1000000u /* ns: in so short a call nobody has closed the spool since the frame before it */
#define DEVICES 256
#define DEVICE_NAME 64
#define PREFIX "/dev/nvidia"

enum frame_type {
	FRAME_PROCESS = 1,
	FRAME_OPEN,
	FRAME_FD,
	FRAME_ENTER,
	FRAME_LEAVE,
	FRAME_MMAP,
	FRAME_CLOSE,
	FRAME_DUP,
	FRAME_EXEC,
};

enum space { SPACE_FRONTEND, SPACE_UVM, SPACE_CONTROL, SPACE_ALLOC, SPACE_OTHER };

enum {
	FLAG_TRUNCATED = 1, /* parameters cut at our bound */
	FLAG_BY_TABLE = 2,  /* their size came from the table */
	FLAG_FAULT = 8,     /* memory that could not be read */
	FLAG_STATUS = 16,   /* `status` is meaningful */
	FLAG_FORKED = 32,   /* a process that began with fork, not exec */
};

/* Both sides of the spool are the same machine: host byte order. */
struct frame {
	uint32_t magic;
	uint32_t size; /* of the whole frame; the last four bytes are its complement */
	uint16_t type;
	uint16_t flags;
	uint32_t pid;
	uint32_t tid;
	uint32_t err;
	uint64_t time; /* CLOCK_MONOTONIC, ns */
	uint64_t id;   /* of the call: ENTER and LEAVE have the same */
	int64_t ret;
	int32_t fd;
	uint32_t request;
	uint32_t space;
	uint32_t key;
	uint32_t status;
	uint32_t params_size;
	uint64_t args[4];
	uint32_t text;     /* bytes of text after this header */
	uint32_t sections; /* how many sections after the text */
};

/* `where`: 0 the argument struct, 1 the parameters, else 0x10000 + the offset of the pointer that leads to the buffer. */
struct section {
	uint32_t where;
	uint32_t size;
};

struct pointer {
	uint16_t offset;
	uint16_t count_offset; /* NONE: `fixed` is the count */
	uint8_t count_width;
	uint8_t square;
	uint16_t pad;
	uint32_t element;
	uint32_t fixed;
	uint32_t limit;
};

struct entry {
	uint32_t space;
	uint32_t number;
	uint32_t size; /* of the struct; for a frontend entry part of the key */
	uint16_t key_offset;
	uint16_t params_offset;
	uint16_t size_offset;
	uint16_t status_offset;
	uint16_t inner; /* the space that key_offset's number belongs to */
	uint16_t pointers;
	struct pointer pointer[MAX_POINTERS];
};

struct table {
	uint32_t magic;
	uint32_t entries;
	struct entry entry[];
};

_Static_assert(sizeof(struct frame) == 112, "table.py and spool.py know this size");
_Static_assert(sizeof(struct entry) == 24 + MAX_POINTERS * 20, "table.py writes this");

struct slot {
	atomic_int busy;
	_Atomic(unsigned char *) memory; /* two halves of SLOT_SIZE: the frame before, what came after */
};

struct device {
	atomic_int ready;
	dev_t number;
	char name[DEVICE_NAME]; /* empty: not one of ours */
};

static struct slot slots[SLOTS];
static struct device devices[DEVICES];
static atomic_int device_count;
static atomic_int spool_fd = -1;
static atomic_ullong next_id;
static atomic_int active;
static char spool_path[PATH_MAX];
static dev_t spool_dev;
static ino_t spool_ino;
static const struct table *table;
static size_t table_size;
static bool record_values = true;

/* The next definition of each function that we stand in front of. */
#define REAL(name, type, ...)                                                                        \
	typedef type (*name##_fn)(__VA_ARGS__);                                                      \
	static _Atomic(name##_fn) real_##name##_p;                                                   \
	static name##_fn real_##name(void)                                                           \
	{                                                                                            \
		name##_fn fn = atomic_load_explicit(&real_##name##_p, memory_order_relaxed);         \
		if (!fn) {                                                                           \
			fn = (name##_fn)dlsym(RTLD_NEXT, #name);                                     \
			atomic_store_explicit(&real_##name##_p, fn, memory_order_relaxed);           \
		}                                                                                    \
		return fn;                                                                           \
	}

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
REAL(execve, int, const char *, char *const[], char *const[])
REAL(execv, int, const char *, char *const[])
REAL(execvp, int, const char *, char *const[])
REAL(execvpe, int, const char *, char *const[], char *const[])
REAL(fexecve, int, int, char *const[], char *const[])
REAL(posix_spawn, int, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
     char *const[])
REAL(posix_spawnp, int, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
     char *const[])

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Only system calls below: the program may have put its own functions in front of libc's. */

static int sys_fstat(int fd, struct stat *st)
{
	return fstat(fd, st);
}

static void open_spool(void)
{
	struct rlimit limit;
	struct stat st;
	int expected, fd, high, low;

	fd = (int)syscall(SYS_openat, AT_FDCWD, spool_path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0)
		return;
	if (sys_fstat(fd, &st) || st.st_dev != spool_dev || st.st_ino != spool_ino) {
		syscall(SYS_close, fd);
		return;
	}
	/* Out of the way: the numbers that the program sees must be the ones that it would see without us. */
	low = 1000;
	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur <= 1024)
		low = limit.rlim_cur > 8 ? (int)limit.rlim_cur - 8 : 0;
	high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, low);
	if (high >= 0) {
		syscall(SYS_close, fd);
		fd = high;
	}
	expected = atomic_load(&spool_fd);
	if (!atomic_compare_exchange_strong(&spool_fd, &expected, fd))
		syscall(SYS_close, fd);
}

static bool spool_ready(void)
{
	struct stat st;
	int try;

	for (try = 0; try < 2; try++) {
		int fd = atomic_load(&spool_fd);

		if (fd >= 0 && !sys_fstat(fd, &st) && st.st_dev == spool_dev && st.st_ino == spool_ino)
			return true;
		open_spool();
	}
	return false;
}

static void spool_write(const void *data, size_t size, bool checked)
{
	if (checked || spool_ready())
		/* A short write (a full disk) leaves a torn frame, which the reader skips and reports. */
		(void)!syscall(SYS_write, atomic_load(&spool_fd), data, size);
}

static struct slot *slot_get(struct slot *spare)
{
	unsigned char *memory;
	int i;

	for (i = 0; i < SLOTS; i++) {
		if (atomic_load_explicit(&slots[i].busy, memory_order_relaxed) || atomic_exchange(&slots[i].busy, 1))
			continue;
		if (atomic_load(&slots[i].memory))
			return &slots[i];
		memory = (unsigned char *)syscall(SYS_mmap, NULL, 2 * (size_t)SLOT_SIZE, PROT_READ | PROT_WRITE,
						  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (memory == MAP_FAILED) {
			atomic_store(&slots[i].busy, 0);
			return NULL;
		}
		atomic_store(&slots[i].memory, memory);
		return &slots[i];
	}
	/* More calls at once than slots, or slots that a fork froze in another thread's hands. */
	memory = (unsigned char *)syscall(SYS_mmap, NULL, 2 * (size_t)SLOT_SIZE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	atomic_store(&spare->memory, memory);
	return spare;
}

static void slot_put(struct slot *slot, const struct slot *spare)
{
	if (slot == spare)
		syscall(SYS_munmap, atomic_load(&slot->memory), 2 * (size_t)SLOT_SIZE);
	else
		atomic_store(&slot->busy, 0);
}

/*
 * Copies `size` bytes of the program at `address`; false where it has none. Populating the pages tells at half the price of
 * process_vm_readv(2) that they can be read; where it does not say so (an old kernel, a mapping of a device, a hole) the
 * latter decides.
 */
static bool peek(void *to, uint64_t address, size_t size)
{
	static atomic_int refused;
	struct iovec local = { .iov_base = to, .iov_len = size };
	struct iovec remote = { .iov_base = (void *)(uintptr_t)address, .iov_len = size };
	uint64_t page = address & ~(uint64_t)(PAGE - 1);
	ssize_t n;

	if (!size)
		return true;
	if (!address || address + size < address)
		return false;
	if (syscall(SYS_madvise, page, address + size - page, MADV_POPULATE_READ)) {
		if (!atomic_load_explicit(&refused, memory_order_relaxed)) {
			n = syscall(SYS_process_vm_readv, syscall(SYS_getpid), &local, 1ul, &remote, 1ul, 0ul);
			if (n >= 0 || (errno != ENOSYS && errno != EPERM))
				return n == (ssize_t)size;
			atomic_store(&refused, 1);
		}
	}
	memcpy(to, (const void *)(uintptr_t)address, size);
	return true;
}

static struct frame *frame_of(void *memory, enum frame_type type, uint32_t pid, uint32_t tid)
{
	struct frame *frame = memory;

	memset(frame, 0, sizeof(*frame));
	frame->magic = FRAME_MAGIC;
	frame->size = sizeof(*frame);
	frame->type = (uint16_t)type;
	frame->pid = pid;
	frame->tid = tid;
	frame->fd = -1;
	return frame;
}

static struct frame *frame_begin(void *memory, enum frame_type type)
{
	return frame_of(memory, type, (uint32_t)syscall(SYS_getpid), (uint32_t)syscall(SYS_gettid));
}

static void frame_text(struct frame *frame, const char *text, size_t size)
{
	memcpy((unsigned char *)frame + frame->size, text, size);
	frame->text = (uint32_t)size;
	frame->size += (uint32_t)size;
}

/* Appends a section of `size` bytes that lie at its place already. */
static void frame_section(struct frame *frame, uint32_t where, uint32_t size)
{
	struct section section = { .where = where, .size = size };

	memcpy((unsigned char *)frame + frame->size, &section, sizeof(section));
	frame->size += (uint32_t)sizeof(section) + size;
	frame->sections++;
}

static unsigned char *frame_room(struct frame *frame)
{
	return (unsigned char *)frame + frame->size + sizeof(struct section);
}

static void frame_append(struct frame *frame, bool checked)
{
	uint32_t check;

	frame->size += (uint32_t)sizeof(check);
	check = ~frame->size;
	memcpy((unsigned char *)frame + frame->size - sizeof(check), &check, sizeof(check));
	spool_write(frame, frame->size, checked);
}

static void frame_send(struct frame *frame)
{
	frame_append(frame, false);
}

/* A small frame: no sections, text up to a path's length. */
struct small {
	_Alignas(16) unsigned char bytes[sizeof(struct frame) + PATH_MAX + 64];
};

static size_t bounded(const char *text)
{
	return strnlen(text, PATH_MAX - 1);
}

static bool our_path(const char *path)
{
	return !strncmp(path, PREFIX, sizeof(PREFIX) - 1);
}

static const struct device *device_known(dev_t number)
{
	int i, count = atomic_load(&device_count);

	for (i = 0; i < count && i < DEVICES; i++)
		if (atomic_load(&devices[i].ready) && devices[i].number == number)
			return &devices[i];
	return NULL;
}

static const struct device *device_learn(dev_t number, const char *name)
{
	const struct device *known = device_known(number);
	struct device *new;
	int i;

	if (known)
		return known;
	i = atomic_fetch_add(&device_count, 1);
	if (i >= DEVICES) {
		atomic_store(&device_count, DEVICES);
		return NULL;
	}
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

	if (fd < 0 || !atomic_load(&active) || sys_fstat(fd, &st) || !S_ISCHR(st.st_mode))
		return NULL;
	device = device_known(st.st_rdev);
	if (!device) {
		decimal(link + sizeof("/proc/self/fd/") - 1, fd);
		n = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof(name) - 1);
		name[n > 0 ? n : 0] = 0;
		device = device_learn(st.st_rdev, our_path(name) ? name : "");
	}
	return device && device->name[0] ? device : NULL;
}

static const struct entry *find(uint32_t space, uint32_t number, uint32_t size)
{
	uint32_t low = 0, high = table ? table->entries : 0;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct entry *e = &table->entry[middle];
		int order = e->space != space ? (e->space < space ? -1 : 1) :
			    e->number != number ? (e->number < number ? -1 : 1) :
			    space == SPACE_FRONTEND && e->size != size ? (e->size < size ? -1 : 1) : 0;

		if (!order)
			return e;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

static uint64_t load(const unsigned char *bytes, uint32_t size, uint32_t offset, uint32_t width)
{
	uint64_t value = 0;

	if (offset != NONE && offset + width <= size)
		memcpy(&value, bytes + offset, width);
	return value;
}

/* What a call is, found once before it: the same places are read again after it. */
struct call {
	const struct entry *top; /* may be NULL */
	const struct entry *par;
	uint64_t arg;
	uint64_t params;
	uint32_t top_size;
	uint32_t par_size;
	struct {
		uint64_t address;
		uint32_t where;
		uint32_t size;
	} buffer[2 * MAX_POINTERS];
	uint32_t buffers;
};

static void find_buffers(struct call *call, const struct entry *entry, const unsigned char *bytes, uint32_t size)
{
	uint32_t i, left = MAX_BUFFERS;

	for (i = 0; i < call->buffers; i++)
		left -= call->buffer[i].size;
	for (i = 0; entry && i < entry->pointers && i < MAX_POINTERS && call->buffers < 2 * MAX_POINTERS; i++) {
		const struct pointer *p = &entry->pointer[i];
		uint64_t count = p->count_offset == NONE ? p->fixed : load(bytes, size, p->count_offset, p->count_width);
		uint64_t address = load(bytes, size, p->offset, 8);
		uint64_t limit = p->limit < left ? p->limit : left;

		if (p->square)
			count = count > 0xffffffffu ? ~0ull : count * count;
		if (!address || !count || count > limit / p->element)
			continue;
		call->buffer[call->buffers].address = address;
		call->buffer[call->buffers].where = 0x10000u + p->offset;
		call->buffer[call->buffers].size = (uint32_t)(count * p->element);
		left -= call->buffer[call->buffers].size;
		call->buffers++;
	}
}

/* Before the call: one piece, kept if it can be read. */
static void take(struct frame *frame, uint32_t where, uint64_t address, uint32_t size)
{
	if (!size)
		return;
	if (peek(frame_room(frame), address, size))
		frame_section(frame, where, size);
	else
		frame->flags |= FLAG_FAULT;
}

/* After it: the same piece, kept if it changed. `before` shows that it could be read. */
static void take_again(struct frame *frame, uint32_t where, uint64_t address, uint32_t size, const unsigned char *before)
{
	const void *now_there = (const void *)(uintptr_t)address;

	if (!size || !before || !memcmp(now_there, before, size))
		return;
	memcpy(frame_room(frame), now_there, size);
	frame_section(frame, where, size);
}

static const unsigned char *section_of(const struct frame *frame, uint32_t where, uint32_t size)
{
	const unsigned char *at = (const unsigned char *)frame + sizeof(*frame) + frame->text;
	uint32_t i;

	for (i = 0; i < frame->sections; i++) {
		struct section section;

		memcpy(&section, at, sizeof(section));
		if (section.where == where && section.size == size)
			return at + sizeof(section);
		at += sizeof(section) + section.size;
	}
	return NULL;
}

/* The frame before the call: what it is, and everything that its pointers lead to. */
static void look(struct frame *frame, struct call *call, const struct device *device, unsigned long request)
{
	bool uvm = !strncmp(device->name, PREFIX "-uvm", sizeof(PREFIX "-uvm") - 1);
	bool frontend = !uvm && device->name[sizeof(PREFIX) - 1] != '-';
	const unsigned char *top;

	frame->space = uvm ? SPACE_UVM : frontend ? SPACE_FRONTEND : SPACE_OTHER;
	frame->key = frontend ? (uint32_t)request & 0xffu : (uint32_t)request;
	call->top_size = uvm ? 0 : (uint32_t)(request >> 16) & 0x3fffu;
	call->top = frame->space == SPACE_OTHER ? NULL : find(frame->space, frame->key, call->top_size);
	if (uvm && call->top)
		call->top_size = call->top->size;
	if (call->top_size > MAX_TOP)
		call->top_size = MAX_TOP;
	take(frame, 0, call->arg, call->top_size);
	top = section_of(frame, 0, call->top_size);
	if (!call->top || !top)
		return;
	if (call->top->params_offset != NONE) {
		frame->space = call->top->inner;
		frame->key = (uint32_t)load(top, call->top_size, call->top->key_offset, 4);
		call->params = load(top, call->top_size, call->top->params_offset, 8);
		call->par_size = (uint32_t)load(top, call->top_size, call->top->size_offset, 4);
		call->par = find(frame->space, frame->key, 0);
		/* The driver takes the size of an allocation's parameters from the class; the caller may say anything. */
		if (frame->space == SPACE_ALLOC && call->params && call->par && call->par->size) {
			if (call->par_size != call->par->size)
				frame->flags |= FLAG_BY_TABLE;
			call->par_size = call->par->size;
		}
		frame->params_size = call->par_size;
		if (call->par_size > MAX_PARAMS) {
			call->par_size = MAX_PARAMS;
			frame->flags |= FLAG_TRUNCATED;
		}
		if (!call->params)
			call->par_size = 0;
		take(frame, 1, call->params, call->par_size);
	}
	/* take() moved the end of the frame, never the sections before it. */
	top = section_of(frame, 0, call->top_size);
	if (top)
		find_buffers(call, call->top, top, call->top_size);
	if (call->par) {
		const unsigned char *par = section_of(frame, 1, call->par_size);

		if (par)
			find_buffers(call, call->par, par, call->par_size);
	}
	for (uint32_t i = 0; i < call->buffers; i++)
		take(frame, call->buffer[i].where, call->buffer[i].address, call->buffer[i].size);
}

/* The frame after the call: the answer, and the pieces that changed. */
static void look_again(struct frame *after, const struct frame *before, const struct call *call)
{
	const unsigned char *top = section_of(before, 0, call->top_size);
	uint32_t i;

	if (call->top && top && call->top->status_offset != NONE) {
		after->status = (uint32_t)load((const unsigned char *)(uintptr_t)call->arg, call->top_size,
					       call->top->status_offset, 4);
		after->flags |= FLAG_STATUS;
	}
	take_again(after, 0, call->arg, call->top_size, top);
	take_again(after, 1, call->params, call->par_size, section_of(before, 1, call->par_size));
	for (i = 0; i < call->buffers; i++)
		take_again(after, call->buffer[i].where, call->buffer[i].address, call->buffer[i].size,
			   section_of(before, call->buffer[i].where, call->buffer[i].size));
}

static void drop_sections(struct frame *frame)
{
	frame->size = (uint32_t)sizeof(*frame) + frame->text;
	frame->sections = 0;
}

static int recorded_ioctl(int fd, unsigned long request, void *arg, const struct device *device, struct slot *slot)
{
	unsigned char *memory = atomic_load(&slot->memory);
	struct call call = { .arg = (uint64_t)(uintptr_t)arg };
	struct frame *before = frame_begin(memory, FRAME_ENTER);
	struct frame *after;
	uint64_t start, id = atomic_fetch_add(&next_id, 1);
	unsigned char under_check[sizeof(uint32_t)];
	uint32_t sections;
	int entry_errno = errno, ret, err;
	bool sent;

	before->id = id;
	before->fd = fd;
	before->request = (uint32_t)request;
	before->args[0] = call.arg;
	frame_text(before, device->name, strlen(device->name));
	look(before, &call, device, request);
	before->time = now();
	sections = before->sections;
	if (!record_values)
		drop_sections(before);
	memcpy(under_check, memory + before->size, sizeof(under_check));
	frame_send(before);
	sent = atomic_load(&spool_fd) >= 0;
	memcpy(memory + before->size - sizeof(under_check), under_check, sizeof(under_check));
	before->sections = sections;

	start = now();
	errno = entry_errno;
	ret = real_ioctl()(fd, request, arg);
	err = errno;

	after = frame_of(memory + SLOT_SIZE, FRAME_LEAVE, before->pid, before->tid);
	after->time = now();
	after->args[1] = after->time - start;
	after->id = id;
	after->fd = fd;
	after->ret = ret;
	after->err = ret < 0 ? (uint32_t)err : 0;
	look_again(after, before, &call);
	if (!record_values)
		drop_sections(after);
	frame_append(after, sent && after->args[1] < BRIEF);
	errno = err;
	return ret;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	const struct device *device;
	struct slot spare = { 0 }, *slot;
	int saved = errno, ret;
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	device = device_of(fd);
	slot = device ? slot_get(&spare) : NULL;
	errno = saved;
	if (!slot)
		return real_ioctl()(fd, request, arg);
	ret = recorded_ioctl(fd, request, arg, device, slot);
	saved = errno;
	slot_put(slot, &spare);
	errno = saved;
	return ret;
}

static void opened(const char *path, int flags, int fd, uint64_t start)
{
	struct small small;
	struct frame *frame;
	struct stat st;
	int saved = errno;

	frame = frame_begin(small.bytes, FRAME_OPEN);
	frame->time = start;
	frame->args[0] = (uint32_t)flags;
	frame->args[1] = now() - start;
	frame->fd = fd;
	frame->ret = fd;
	frame->err = fd < 0 ? (uint32_t)saved : 0;
	frame_text(frame, path, bounded(path));
	frame_send(frame);
	if (fd >= 0 && !sys_fstat(fd, &st) && S_ISCHR(st.st_mode))
		device_learn(st.st_rdev, path);
	errno = saved;
}

static bool watched(const char *path)
{
	/* A path that the kernel would answer with EFAULT is not ours to touch; no program opens one through libc twice. */
	return path && atomic_load(&active) && our_path(path);
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
	struct small small;
	struct frame *frame;
	int saved = errno;

	frame = frame_begin(small.bytes, FRAME_MMAP);
	frame->time = start;
	frame->fd = fd;
	frame->ret = (int64_t)(intptr_t)va;
	frame->err = va == MAP_FAILED ? (uint32_t)saved : 0;
	frame->args[0] = (uint64_t)(uintptr_t)addr;
	frame->args[1] = now() - start;
	frame->args[2] = size;
	frame->args[3] = (uint64_t)offset;
	frame->request = (uint32_t)prot;
	frame->key = (uint32_t)flags;
	frame_text(frame, device->name, strlen(device->name));
	frame_send(frame);
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
	struct small small;
	struct frame *frame;
	int saved = errno;

	frame = frame_begin(small.bytes, type);
	frame->time = start;
	frame->args[1] = now() - start;
	frame->fd = fd;
	frame->ret = ret;
	frame->err = ret < 0 ? (uint32_t)saved : 0;
	frame_text(frame, device->name, strlen(device->name));
	frame_send(frame);
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

/* Said before the exec, and again with its errno when it came back: the new program's own first frame is missing when
 * it is static or setuid, or was given an environment without us. */
static void exec_event(const char *path, uint32_t pid, int err)
{
	struct small small;
	struct frame *frame;
	int saved = errno;

	if (atomic_load(&active)) {
		frame = frame_begin(small.bytes, FRAME_EXEC);
		frame->time = now();
		frame->err = (uint32_t)err;
		if (pid)
			frame->pid = pid;
		if (path)
			frame_text(frame, path, bounded(path));
		frame_send(frame);
	}
	errno = saved;
}

#define EXEC(call)                                   \
	do {                                         \
		int exec_ret;                        \
		exec_event(path, 0, 0);              \
		exec_ret = call;                     \
		exec_event(path, 0, errno);          \
		return exec_ret;                     \
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

#define SPAWN(name)                                                                                             \
	EXPORT int name(pid_t *restrict pid, const char *restrict path,                                         \
			const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict attr, \
			char *const argv[restrict], char *const envp[restrict])                                  \
	{                                                                                                       \
		pid_t child = 0;                                                                                \
		int ret = real_##name()(&child, path, actions, attr, argv, envp);                               \
                                                                                                                \
		if (!ret) {                                                                                     \
			if (pid)                                                                                \
				*pid = child;                                                                   \
			exec_event(path, (uint32_t)child, 0);                                                   \
		}                                                                                               \
		return ret;                                                                                     \
	}

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

static void process_event(uint16_t flags)
{
	struct small small;
	struct frame *frame = frame_begin(small.bytes, FRAME_PROCESS);
	ssize_t n = 0;
	int fd;

	frame->time = now();
	frame->flags = flags;
	frame->args[0] = (uint64_t)syscall(SYS_getppid);
	fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0) {
		n = syscall(SYS_read, fd, small.bytes + frame->size, PATH_MAX - 1);
		syscall(SYS_close, fd);
	}
	if (n > 0) {
		frame->text = (uint32_t)n;
		frame->size += (uint32_t)n;
	}
	frame_send(frame);
}

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

	process_event(FLAG_FORKED);
	errno = saved;
}

static void map_table(const char *path)
{
	const struct table *mapped_table;
	struct stat st;
	int fd;

	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (!sys_fstat(fd, &st) && st.st_size >= (off_t)sizeof(struct table)) {
		mapped_table = (const void *)syscall(SYS_mmap, NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (mapped_table != MAP_FAILED && mapped_table->magic == TABLE_MAGIC &&
		    (uint64_t)st.st_size == sizeof(struct table) + (uint64_t)mapped_table->entries * sizeof(struct entry)) {
			table = mapped_table;
			table_size = (size_t)st.st_size;
		}
	}
	syscall(SYS_close, fd);
}

static __attribute__((constructor)) void begin(void)
{
	const char *path = getenv("NVPROXY_TRACE_SPOOL");
	const char *entries = getenv("NVPROXY_TRACE_TABLE");
	const char *values = getenv("NVPROXY_TRACE_VALUES");
	struct stat st;
	int saved = errno;

	if (!path || strlen(path) >= sizeof(spool_path) || stat(path, &st) || !S_ISREG(st.st_mode))
		return;
	strcpy(spool_path, path);
	spool_dev = st.st_dev;
	spool_ino = st.st_ino;
	record_values = !values || strcmp(values, "0");
	if (entries)
		map_table(entries);
	atomic_store(&active, 1);
	process_event(0);
	inherited();
	pthread_atfork(NULL, NULL, forked);
	errno = saved;
}
