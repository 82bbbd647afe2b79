// SPDX-License-Identifier: Apache-2.0
/*
 * Writing frames into the mapped spool, from any thread, signal handler, fork or vfork child: nothing here allocates, locks,
 * uses thread-local storage or keeps a descriptor.
 *
 *  - A place in the file is taken by moving the shared cursor. The bytes get there through process_vm_readv(2) of the process
 *    itself: the kernel reads the program's memory and writes the mapping, and where either cannot be done it says EFAULT
 *    where an access of ours would be a signal.
 *  - A window is a mapping of the part of the file that is being written, in one half of its place. It moves on with
 *    mremap(2), which needs no descriptor: old size 0 maps the same file once more, from the old page's offset on, over the
 *    other half. The places are taken at the start and never given back: a program that limits its address space later is
 *    not in the way, and one that unmaps a page and maps it again finds none of ours there.
 */
#define _GNU_SOURCE
#include "spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_faccessat2
#define SYS_faccessat2 439
#endif

#define WINDOWS 4             /* one is held for a frame's copy, never during the program's own call */
#define WINDOW_SIZE (9u << 18) /* more than the largest frame; a multiple of every page size */
#define OWN_TEXT 64u
#define OWN_BYTES 256u
#define LARGEST (1ull << 38) /* bytes of a spool: so far a window moves in a tenth of a second */
#define LOW_WATER (2u << 20) /* the launcher is woken when less than this is left */
#define PATIENCE 2000        /* times half a millisecond, for room; twice that for a window, whose holder may wait for room */
#define YIELDS 64            /* for a window, before the first of those */

struct window {
	atomic_int held;
	_Atomic(uint64_t) mapped; /* the file's offset at its start, and in bit 0 the half: never one without the other */
};

static struct spool_head *head;
static const void *launcher_table;
static size_t launcher_table_size;
static size_t page;
static char spool_path[PATH_MAX];
static struct window windows[WINDOWS];
static unsigned char *places; /* two halves of WINDOW_SIZE for each window */
static atomic_bool forbidden; /* process_vm_readv(2), by a sandbox */
static atomic_bool abandoned; /* nobody makes room any more */
static atomic_bool stuck;     /* no window was given back for so long: whoever holds them is stopped, or was killed in vfork */

uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

bool spool_active(void)
{
	return head && atomic_load_explicit(&head->state, memory_order_relaxed) != SPOOL_CLOSED;
}

void spool_missed(void)
{
	atomic_fetch_add(&head->lost, 1);
}

bool spool_keeps_values(void)
{
	return head->values;
}

bool spool_allowed(void)
{
	return !syscall(SYS_faccessat2, AT_FDCWD, spool_path, R_OK | W_OK, AT_EACCESS) || errno == ENOSYS;
}

const void *spool_table(size_t *size)
{
	*size = launcher_table_size;
	return launcher_table;
}

/* Only system calls below: the program may have put its own functions in front of libc's. */

static void *map(int fd, uint64_t offset, size_t size, int protection, int flags)
{
	void *address = (void *)syscall(SYS_mmap, NULL, size, protection, flags, fd, offset);

	return address == MAP_FAILED ? NULL : address;
}

static unsigned char *half_of(const struct window *window, unsigned int half)
{
	return places + (2 * (size_t)(window - windows) + half) * WINDOW_SIZE;
}

static bool take_places(int fd)
{
	unsigned char *all = map(-1, 0, 2 * WINDOWS * (size_t)WINDOW_SIZE, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
	int i;

	if (!all)
		return false;
	places = all;
	for (i = 0; i < WINDOWS; i++)
		if ((void *)syscall(SYS_mmap, half_of(&windows[i], 0), (size_t)WINDOW_SIZE, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
			return false;
	return true;
}

bool spool_open(const char *path)
{
	struct spool_head *mapped;
	struct stat st;
	int fd;

	page = getauxval(AT_PAGESZ);
	if (strlen(path) >= sizeof(spool_path))
		return false;
	strcpy(spool_path, path);
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
	if (fd < 0)
		return false;
	mapped = fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(*mapped) ?
			 NULL : map(fd, 0, page, PROT_READ | PROT_WRITE, MAP_SHARED);
	if (mapped && (mapped->magic != SPOOL_MAGIC || mapped->version != SPOOL_VERSION)) {
		syscall(SYS_munmap, mapped, page);
		mapped = NULL;
	}
	if (mapped && mapped->table_size && mapped->table_at % page == 0 &&
	    mapped->table_at + mapped->table_size <= (uint64_t)st.st_size) {
		launcher_table = map(fd, mapped->table_at, (size_t)mapped->table_size, PROT_READ, MAP_PRIVATE);
		launcher_table_size = launcher_table ? (size_t)mapped->table_size : 0;
	}
	if (mapped && !take_places(fd)) {
		atomic_fetch_add(&mapped->lost, 1);
		syscall(SYS_munmap, mapped, page);
		mapped = NULL;
	}
	syscall(SYS_close, fd);
	head = mapped;
	return head;
}

/* Where the file's bytes from `from` to `to` are mapped, or NULL. Windows move forward only, as the cursor does. */
static unsigned char *window_reach(struct window *window, uint64_t from, uint64_t to)
{
	uint64_t mapped = atomic_load(&window->mapped), offset = mapped & ~1ull, first = from - from % page, next;
	unsigned int half = mapped & 1;
	unsigned char *old, *new;

	if (from < offset || to < from || to - first > WINDOW_SIZE || to - offset > LARGEST)
		return NULL;
	while (to > offset + WINDOW_SIZE) {
		next = offset + WINDOW_SIZE - page;
		next = next < first ? next : first;
		old = half_of(window, half) + (next - offset);
		new = half_of(window, !half);
		if ((void *)syscall(SYS_mremap, old, 0, (size_t)WINDOW_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, new) == MAP_FAILED)
			return NULL;
		half = !half;
		offset = next;
		atomic_store(&window->mapped, offset | half);
	}
	return half_of(window, half) + (from - offset);
}

static void nap(void)
{
	const struct timespec half_a_millisecond = { .tv_nsec = 500000 };

	syscall(SYS_nanosleep, &half_a_millisecond, NULL);
}

static bool room_for(uint64_t end)
{
	int i;

	if (atomic_load(&head->state) != SPOOL_OPEN)
		return false;
	for (i = 0; i < (atomic_load(&abandoned) ? 1 : PATIENCE); i++) {
		if (i)
			nap();
		if (end <= atomic_load(&head->limit))
			return true;
		if (atomic_load(&head->state) != SPOOL_OPEN)
			return false;
		atomic_fetch_add(&head->wanted, 1);
		syscall(SYS_futex, &head->wanted, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
	atomic_store(&abandoned, true);
	return false;
}

/* The frame's own place in the file, or NULL. */
static unsigned char *reserve(struct window *window, size_t size)
{
	uint64_t at = atomic_load(&head->cursor), end, limit;
	unsigned char *place;

	size = (size + 7) & ~(size_t)7;
	for (;;) {
		end = at + size;
		limit = atomic_load(&head->limit);
		if (end > limit && !room_for(end))
			return NULL;
		place = window_reach(window, at, end);
		if (!place)
			return NULL;
		if (atomic_compare_exchange_weak(&head->cursor, &at, end))
			break;
	}
	if (end + LOW_WATER > limit && atomic_load(&head->state) == SPOOL_OPEN && !atomic_load(&abandoned)) {
		atomic_fetch_add(&head->wanted, 1);
		syscall(SYS_futex, &head->wanted, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
	return place;
}

/* A yield alone is no wait: among many threads on few processors the holder may not run again for thousands of them. */
static struct window *window_get(void)
{
	int i, try;

	for (try = 0; try < YIELDS + (atomic_load(&stuck) ? 1 : 2 * PATIENCE); try++) {
		for (i = 0; i < WINDOWS; i++)
			if (!atomic_load_explicit(&windows[i].held, memory_order_relaxed) &&
			    !atomic_exchange(&windows[i].held, 1)) {
				if (atomic_load_explicit(&stuck, memory_order_relaxed))
					atomic_store(&stuck, false);
				return &windows[i];
			}
		if (try < YIELDS)
			syscall(SYS_sched_yield);
		else
			nap();
	}
	atomic_store(&stuck, true);
	return NULL;
}

void spool_forked(void)
{
	int i;

	for (i = 0; i < WINDOWS; i++)
		atomic_store(&windows[i].held, 0);
	atomic_store(&stuck, false);
}

static size_t copy(void *to, size_t room, const struct iovec *from, size_t count)
{
	struct iovec local = { .iov_base = to, .iov_len = room };
	ssize_t n = -1;

	if (!atomic_load_explicit(&forbidden, memory_order_relaxed)) {
		n = syscall(SYS_process_vm_readv, syscall(SYS_getpid), &local, 1ul, from, count, 0ul);
		if (n < 0 && (errno == ENOSYS || errno == EPERM))
			atomic_store(&forbidden, true);
	}
	return n < 0 ? 0 : (size_t)n;
}

bool copy_in(void *to, uint64_t address, size_t size)
{
	struct iovec from = { .iov_base = (void *)(uintptr_t)address, .iov_len = size };

	return copy(to, size, &from, 1) == size;
}

ssize_t copy_string(char *to, const char *from, size_t room)
{
	size_t length = 0, step;
	const char *end;

	if (!from)
		return -1;
	if (atomic_load(&forbidden)) {
		length = strnlen(from, room - 1);
		memcpy(to, from, length);
		to[length] = 0;
		return (ssize_t)length;
	}
	while (length < room - 1) {
		/* Up to the page's end: the next one may not be there. */
		step = page - ((uintptr_t)from + length) % page;
		step = step < room - 1 - length ? step : room - 1 - length;
		if (!copy_in(to + length, (uintptr_t)from + length, step))
			return atomic_load(&forbidden) ? copy_string(to, from, room) : -1;
		end = memchr(to + length, 0, step);
		if (end)
			return end - to;
		length += step;
	}
	to[length] = 0;
	return (ssize_t)length;
}

/* Memory of our own: on the stack, so that it can be read for certain. */
static bool put(unsigned char *to, const void *from, size_t size)
{
	if (!size || copy_in(to, (uintptr_t)from, size))
		return true;
	if (!atomic_load(&forbidden))
		return false;
	memcpy(to, from, size);
	return true;
}

/*
 * Everything of ours lies together, so that the kernel pins few pages: it is put together on the stack, with a short text and
 * what was read already.
 */
struct own {
	struct frame frame;
	struct section sections[MAX_PIECES];
	unsigned char more[OWN_TEXT + OWN_BYTES];
};

static bool write_frame(unsigned char *to, const struct frame *frame, const void *text, const struct piece *pieces,
			unsigned int count)
{
	const unsigned int heads = count * (unsigned int)sizeof(struct section);
	struct iovec from[3 + MAX_PIECES];
	uint32_t check = ~frame->size;
	unsigned char *end;
	struct own own;
	size_t n = 0, at;
	unsigned int i, first = 0;

	own.frame = *frame;
	for (i = 0; i < count; i++)
		own.sections[i] = (struct section){ pieces[i].where, pieces[i].size };
	end = (unsigned char *)own.sections + heads;
	if (frame->text <= OWN_TEXT) {
		if (frame->text)
			memcpy(end, text, frame->text);
		end += frame->text;
		if (count && pieces[0].read && pieces[0].size <= OWN_BYTES) {
			memcpy(end, pieces[0].read, pieces[0].size);
			end += pieces[0].size;
			first = 1;
		}
	}
	from[n++] = (struct iovec){ &own, (size_t)(end - (unsigned char *)&own) };
	if (frame->text > OWN_TEXT)
		from[n++] = (struct iovec){ (void *)(uintptr_t)text, frame->text };
	for (i = first; i < count; i++)
		from[n++] = (struct iovec){ (void *)(uintptr_t)pieces[i].address, pieces[i].size };
	from[n++] = (struct iovec){ &check, sizeof(check) };
	if (copy(to, frame->size, from, n) == frame->size)
		return true;
	/* Something cannot be read: piece by piece, and the end last. */
	at = sizeof(*frame) + heads + frame->text;
	for (i = 0; i < count; i++) {
		if (!(pieces[i].read ? put(to + at, pieces[i].read, pieces[i].size) :
				       copy_in(to + at, pieces[i].address, pieces[i].size)))
			own.sections[i].where |= UNREADABLE;
		at += pieces[i].size;
	}
	return put(to, &own, sizeof(*frame) + heads) && put(to + sizeof(*frame) + heads, text, frame->text) &&
	       put(to + at, &check, sizeof(check));
}

void frame_begin(struct frame *frame, enum frame_type type)
{
	memset(frame, 0, sizeof(*frame));
	frame->magic = FRAME_MAGIC;
	frame->type = (uint16_t)type;
	frame->pid = (uint32_t)syscall(SYS_getpid);
	frame->tid = (uint32_t)syscall(SYS_gettid);
	frame->time = now();
	frame->fd = -1;
}

bool frame_send(struct frame *frame, const void *text, size_t size, const struct piece *pieces, unsigned int count)
{
	struct window *window;
	unsigned char *place;
	uint64_t all = ~0ull, signals;
	unsigned int i;
	bool written = false;

	if (!spool_active())
		return false;
	frame->text = (uint32_t)size;
	frame->sections = count;
	frame->size = (uint32_t)(sizeof(*frame) + size + sizeof(uint32_t));
	for (i = 0; i < count; i++)
		frame->size += (uint32_t)sizeof(struct section) + pieces[i].size;
	/* A handler that jumps away (siglongjmp) would keep the window for ever. */
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &signals, sizeof(all));
	window = window_get();
	if (window) {
		place = reserve(window, frame->size);
		written = place && write_frame(place, frame, text, pieces, count);
		atomic_store(&window->held, 0);
	}
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &signals, NULL, sizeof(all));
	if (!written)
		atomic_fetch_add(frame->type == FRAME_LEAVE ? &head->lost_answers : &head->lost, 1);
	return written;
}
