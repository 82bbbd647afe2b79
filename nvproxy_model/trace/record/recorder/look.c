// SPDX-License-Identifier: Apache-2.0
/*
 * No driver ABI is known here. Which argument holds a command, a pointer, a size or a status comes from the table that the
 * launcher puts into the spool (nvproxy_model/trace/record/table.py) for the driver of the machine.
 */
#include "look.h"

#include <string.h>

#define TABLE_MAGIC 0x5454564eu /* "NVTT" */
#define NONE 0xffffu
#define MAX_ARGUMENT 16384u
#define MAX_PARAMETERS (1u << 20) /* RMAPI_PARAM_COPY_MAX_PARAMS_SIZE */
#define MAX_BUFFERS (1u << 20)
#define MAX_POINTERS 4

enum space { SPACE_FRONTEND, SPACE_UVM, SPACE_CONTROL, SPACE_ALLOC, SPACE_OTHER };

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

_Static_assert(sizeof(struct entry) == 24 + MAX_POINTERS * 20, "table.py writes this");
_Static_assert(MAX_PIECES == 3 + 2 * MAX_POINTERS, "what a call can have");

static const struct table *table;

void look_begin(void)
{
	size_t size;
	const struct table *mapped = spool_table(&size);

	if (mapped && size >= sizeof(*mapped) && mapped->magic == TABLE_MAGIC &&
	    size == sizeof(*mapped) + (uint64_t)mapped->entries * sizeof(struct entry))
		table = mapped;
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

static bool read_fields(struct fields *fields, uint64_t address, uint32_t size)
{
	fields->size = size < FIELDS ? size : FIELDS;
	return fields->size && copy_in(fields->bytes, address, fields->size);
}

static uint64_t load(const struct fields *fields, uint32_t offset, uint32_t width)
{
	uint64_t value = 0;

	if (offset != NONE && offset + width <= fields->size && width <= sizeof(value))
		memcpy(&value, fields->bytes + offset, width);
	return value;
}

static void add(struct call *call, uint32_t where, uint64_t address, uint32_t size, const void *read)
{
	if (size && call->count < MAX_PIECES - 1)
		call->pieces[call->count++] = (struct piece){ where, size, address, read };
}

static void add_buffers(struct call *call, const struct entry *entry, const struct fields *fields, uint32_t *left)
{
	uint32_t i;

	for (i = 0; i < entry->pointers && i < MAX_POINTERS; i++) {
		const struct pointer *p = &entry->pointer[i];
		uint64_t count = p->count_offset == NONE ? p->fixed : load(fields, p->count_offset, p->count_width);
		uint64_t address = load(fields, p->offset, 8);
		uint64_t limit = p->limit < *left ? p->limit : *left;

		if (p->square)
			count = count > 0xffffffffu ? ~0ull : count * count;
		if (!address || !count || !p->element || count > limit / p->element)
			continue;
		add(call, WHERE_POINTER + p->offset, address, (uint32_t)(count * p->element), NULL);
		*left -= (uint32_t)(count * p->element);
	}
}

static const struct entry *add_parameters(struct call *call, struct frame *frame, const struct entry *top,
					  const struct fields *fields, uint64_t *address, uint32_t *size)
{
	const struct entry *inner;

	frame->space = top->inner;
	frame->key = (uint32_t)load(fields, top->key_offset, 4);
	*address = load(fields, top->params_offset, 8);
	*size = (uint32_t)load(fields, top->size_offset, 4);
	inner = find(frame->space, frame->key, 0);
	/* The driver takes the size of an allocation's parameters from the class; the caller may say anything. */
	if (frame->space == SPACE_ALLOC && *address && inner && inner->size) {
		if (*size != inner->size)
			frame->flags |= FLAG_BY_TABLE;
		*size = inner->size;
	}
	frame->params_size = *size;
	if (*size > MAX_PARAMETERS) {
		*size = MAX_PARAMETERS;
		frame->flags |= FLAG_TRUNCATED;
	}
	if (!*address)
		*size = 0;
	add(call, WHERE_PARAMETERS, *address, *size, NULL);
	return inner;
}

void look(struct call *call, struct frame *frame, const char *device, unsigned long request, uint64_t argument)
{
	bool uvm = !strncmp(device, "/dev/nvidia-uvm", 15);
	bool frontend = !uvm && device[11] != '-';
	const struct entry *top, *inner = NULL;
	uint32_t size, inner_size = 0, left = MAX_BUFFERS;
	struct fields *fields = &call->fields, inner_fields;
	uint64_t inner_address = 0;

	frame->space = uvm ? SPACE_UVM : frontend ? SPACE_FRONTEND : SPACE_OTHER;
	frame->key = frontend ? (uint32_t)request & 0xffu : (uint32_t)request;
	size = uvm ? 0 : (uint32_t)(request >> 16) & 0x3fffu;
	top = frame->space == SPACE_OTHER ? NULL : find(frame->space, frame->key, size);
	if (uvm && top)
		size = top->size;
	if (size > MAX_ARGUMENT)
		size = MAX_ARGUMENT;
	if (!top || !read_fields(fields, argument, size)) {
		frame->flags |= top && size ? FLAG_FAULT : 0;
		add(call, WHERE_ARGUMENT, argument, size, NULL);
		return;
	}
	add(call, WHERE_ARGUMENT, argument, size, size <= FIELDS ? fields->bytes : NULL);
	if (top->status_offset != NONE && top->status_offset + 4u <= size)
		call->status = (struct piece){ WHERE_STATUS, 4, argument + top->status_offset, NULL };
	if (top->params_offset != NONE)
		inner = add_parameters(call, frame, top, fields, &inner_address, &inner_size);
	add_buffers(call, top, fields, &left);
	if (inner && inner->pointers && inner_size && read_fields(&inner_fields, inner_address, inner_size))
		add_buffers(call, inner, &inner_fields, &left);
}
