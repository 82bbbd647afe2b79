// SPDX-License-Identifier: Apache-2.0
/*
 * The recorder's writing side: a call with any argument, any table and any head of the spool. Nothing may fault, and a frame
 * that was reported as written is there.
 */
#define _GNU_SOURCE
#include "../../../nvproxy_model/trace/record/recorder/spool.c"
#include "../../../nvproxy_model/trace/record/recorder/look.c"

#include <stdlib.h>

#define TABLE_AT 65536
#define ENTRIES 4
#define FRAMES_AT (TABLE_AT + 8 + ENTRIES * 104)
#define LENGTH (1 << 20)

static char path[] = "/tmp/nvproxy-fuzz-spool-XXXXXX";
static int file = -1;

static void restart(void)
{
	if (places)
		munmap(places, 2 * WINDOWS * (size_t)WINDOW_SIZE);
	if (head)
		munmap(head, page);
	if (launcher_table)
		munmap((void *)(uintptr_t)launcher_table, launcher_table_size);
	places = NULL;
	head = NULL;
	launcher_table = NULL;
	table = NULL;
	memset(windows, 0, sizeof(windows));
	atomic_store(&abandoned, true); /* nobody makes room: do not wait for it */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct spool_head clean = { .magic = SPOOL_MAGIC, .version = SPOOL_VERSION, .values = 1, .cursor = FRAMES_AT,
				    .limit = LENGTH, .table_at = TABLE_AT, .table_size = 8 + ENTRIES * 104 };
	static const char *const devices[] = { "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0" };
	struct { uint32_t magic, entries; unsigned char entry[ENTRIES * 104]; } numbers = { TABLE_MAGIC, ENTRIES, { 0 } };
	struct call call = { .count = 0 };
	struct frame frame, written;
	unsigned char argument[16384] = { 0 };
	unsigned long request;
	uint64_t at, lost;
	bool hostile;

	if (size < 16)
		return 0;
	if (file < 0) {
		file = mkstemp(path);
		if (file < 0 || ftruncate(file, LENGTH))
			abort();
	}
	hostile = data[0] & 1;
	memcpy(&request, data + 8, sizeof(request));
	memcpy(numbers.entry, data + 16, size - 16 < sizeof(numbers.entry) ? size - 16 : sizeof(numbers.entry));
	memcpy(argument, data + size / 2, size - size / 2 < sizeof(argument) ? size - size / 2 : sizeof(argument));
	if (data[0] & 2) /* parameters that are there */
		memcpy(argument + 16, &(uint64_t){ (uintptr_t)argument }, 8);
	if (hostile && size >= 16 + sizeof(clean))
		memcpy((unsigned char *)&clean + 8, data + 16, sizeof(clean) - 8);
	if (pwrite(file, &clean, sizeof(clean), 0) != sizeof(clean) ||
	    pwrite(file, &numbers, sizeof(numbers), TABLE_AT) != sizeof(numbers))
		abort();
	restart();
	if (!spool_open(path)) {
		if (!hostile)
			abort();
		return 0;
	}
	look_begin();
	frame_begin(&frame, FRAME_ENTER);
	look(&call, &frame, devices[data[1] & 3], request, data[0] & 4 ? (uintptr_t)argument : (uint64_t)request);
	at = atomic_load(&head->cursor);
	lost = atomic_load(&head->lost);
	if (!frame_send(&frame, "name", 4, call.pieces, call.count)) {
		if (atomic_load(&head->lost) == lost && spool_active())
			abort();
	} else if (!hostile) {
		if (pread(file, &written, sizeof(written), (off_t)at) != sizeof(written) || written.magic != FRAME_MAGIC ||
		    written.size != frame.size || atomic_load(&head->cursor) < at + frame.size)
			abort();
	}
	return 0;
}
