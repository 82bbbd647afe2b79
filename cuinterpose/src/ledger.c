// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "ledger.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static struct cui_call *calls[CUI_SPACES];
static unsigned int waiting;

void cui_ledger_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void cui_ledger_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

void cui_call_wait(enum cui_space space, uint64_t start, uint64_t end)
{
	for (;;) {
		struct cui_call *call = calls[space];

		while (call && (call->end <= start || end <= call->start))
			call = call->next;
		if (!call)
			return;
		waiting++;
		pthread_cond_wait(&ended, &mutex);
		waiting--;
	}
}

void cui_call_begin(enum cui_space space, struct cui_call *call, uint64_t start, uint64_t end)
{
	cui_call_wait(space, start, end);
	call->start = start;
	call->end = end;
	call->next = calls[space];
	calls[space] = call;
}

void cui_call_end(enum cui_space space, struct cui_call *call)
{
	struct cui_call **link = &calls[space];

	while (*link != call)
		link = &(*link)->next;
	*link = call->next;
	if (waiting)
		pthread_cond_broadcast(&ended);
}

/* Ranges. */

static void split(struct cui_range *tree, uint64_t at, struct cui_range **below, struct cui_range **above)
{
	if (!tree) {
		*below = *above = NULL;
	} else if (tree->start < at) {
		split(tree->right, at, &tree->right, above);
		*below = tree;
	} else {
		split(tree->left, at, below, &tree->left);
		*above = tree;
	}
}

static struct cui_range *merge(struct cui_range *below, struct cui_range *above)
{
	if (!below || !above)
		return below ? below : above;
	if (below->weight > above->weight) {
		below->right = merge(below->right, above);
		return below;
	}
	above->left = merge(below, above->left);
	return above;
}

static struct cui_range *first_overlap(struct cui_range *tree, uint64_t start, uint64_t end)
{
	struct cui_range *found = NULL;

	while (tree) {
		if (tree->end <= start) {
			tree = tree->right;
		} else {
			if (tree->start < end)
				found = tree;
			tree = tree->left;
		}
	}
	return found;
}

static void insert(struct cui_range **tree, struct cui_range *range)
{
	static uint32_t seed = 2463534242;
	struct cui_range *below, *above;

	seed ^= seed << 13;
	seed ^= seed >> 17;
	seed ^= seed << 5;
	range->weight = seed;
	range->left = range->right = NULL;
	split(*tree, range->start, &below, &above);
	*tree = merge(merge(below, range), above);
}

static void take_out(struct cui_range **tree, const struct cui_range *range)
{
	while (*tree != range)
		tree = range->start < (*tree)->start ? &(*tree)->left : &(*tree)->right;
	*tree = merge(range->left, range->right);
}

static struct cui_range *mappings, *reservations;

/* Memory. */

enum { BUCKETS = 4096 };
#define OURS UINT64_C(0x4355000000000000) /* the driver's are addresses or small numbers */

static struct cui_memory *buckets[BUCKETS];
static struct cui_memory *first, *last;
static atomic_uint imports;
static atomic_long notes[CUI_NOTE_COUNT];

void cui_note(enum cui_note note, int change)
{
	atomic_fetch_add_explicit(&notes[note], change, memory_order_relaxed);
}

long cui_noted(enum cui_note note)
{
	return atomic_load_explicit(&notes[note], memory_order_relaxed);
}

static struct cui_memory **bucket_of(uint64_t handle)
{
	return &buckets[handle * 0x9e3779b97f4a7c15u >> 52];
}

struct cui_memory *cui_memory_by_handle(uint64_t handle)
{
	struct cui_memory *memory = *bucket_of(handle);

	while (memory && memory->handle != handle)
		memory = memory->beside;
	return memory;
}

struct cui_memory *cui_memory_by_resource(const struct cui_identity *resource)
{
	struct cui_memory *memory = first;

	while (memory && (memory->imported || !cui_identity_same(&memory->resource, resource)))
		memory = memory->next;
	return memory;
}

struct cui_memory *cui_memory_first(void)
{
	return first;
}

void cui_memory_rename(struct cui_memory *memory, uint64_t handle)
{
	if (memory->handle) {
		struct cui_memory **link = bucket_of(memory->handle);

		while (*link != memory)
			link = &(*link)->beside;
		*link = memory->beside;
	}
	memory->handle = handle;
	if (handle) {
		struct cui_memory **bucket = bucket_of(handle);

		memory->beside = *bucket;
		*bucket = memory;
	}
}

void cui_memory_add(struct cui_memory *memory)
{
	uint64_t handle = memory->handle;
	struct cui_memory *other = cui_memory_by_handle(handle);

	if (other) { /* released past us, or its mappings alone are left */
		other->references = 0;
		cui_memory_rename(other, 0);
		cui_memory_settle(other);
	}
	memory->handle = 0;
	cui_memory_rename(memory, handle);
	memory->previous = last;
	*(last ? &last->next : &first) = memory;
	last = memory;
	if (memory->imported)
		atomic_fetch_add_explicit(&imports, 1, memory_order_relaxed);
	if (memory->multicast)
		cui_note(CUI_NOTE_multicast, 1);
}

void cui_memory_settle(struct cui_memory *memory)
{
	if (memory->references || memory->users || memory->first)
		return;
	cui_memory_rename(memory, 0);
	*(memory->previous ? &memory->previous->next : &first) = memory->next;
	*(memory->next ? &memory->next->previous : &last) = memory->previous;
	if (memory->imported)
		atomic_fetch_sub_explicit(&imports, 1, memory_order_relaxed);
	if (memory->multicast)
		cui_note(CUI_NOTE_multicast, -1);
	free(memory->importers);
	free(memory);
}

uint64_t cui_fresh_handle(void)
{
	static uint64_t serial;

	return OURS | ++serial;
}

bool cui_is_ours(uint64_t handle)
{
	return handle >> 48 == OURS >> 48;
}

unsigned int cui_imports(void)
{
	return atomic_load_explicit(&imports, memory_order_relaxed);
}

/* Mappings and reservations. */

/* A program that maps much maps often: mappings come from chunks, and go back to a list. */
enum { CHUNK = 64 };
static struct cui_mapping *spares;

static void spare(struct cui_mapping *mapping)
{
	mapping->next = spares;
	spares = mapping;
}

struct cui_mapping *cui_mapping_new(void)
{
	if (!spares) {
		struct cui_mapping *chunk = malloc(CHUNK * sizeof(*chunk));

		for (unsigned int i = 0; chunk && i < CHUNK; i++)
			spare(&chunk[i]);
	}
	struct cui_mapping *mapping = spares;
	if (mapping) {
		spares = mapping->next;
		*mapping = (struct cui_mapping){ .memory = NULL };
	}
	return mapping;
}

void cui_mapping_unused(struct cui_mapping *mapping)
{
	spare(mapping);
}

struct cui_mapping *cui_mapping_at(uint64_t start, uint64_t end)
{
	return (struct cui_mapping *)first_overlap(mappings, start, end);
}

static void forget(struct cui_mapping *mapping)
{
	struct cui_memory *memory = mapping->memory;

	take_out(&mappings, &mapping->range);
	if (memory) {
		*(mapping->previous ? &mapping->previous->next : &memory->first) = mapping->next;
		*(mapping->next ? &mapping->next->previous : &memory->last) = mapping->previous;
		cui_memory_settle(memory);
	}
	free(mapping->access);
	spare(mapping);
}

void cui_mappings_remove(uint64_t start, uint64_t end)
{
	struct cui_mapping *mapping;

	while ((mapping = cui_mapping_at(start, end)))
		forget(mapping);
}

void cui_mapping_add(struct cui_mapping *mapping)
{
	struct cui_memory *memory = mapping->memory;

	cui_mappings_remove(mapping->range.start, mapping->range.end); /* what was unmapped past us */
	insert(&mappings, &mapping->range);
	if (memory) {
		mapping->previous = memory->last;
		*(memory->last ? &memory->last->next : &memory->first) = mapping;
		memory->last = mapping;
	}
}

bool cui_mapping_set_access(struct cui_mapping *mapping, const struct cui_access *access)
{
	struct cui_access wanted = *access;

	for (unsigned int i = 0; i < mapping->accesses; i++) {
		struct cui_access *old = &mapping->access[i];

		if (old->start == wanted.start && old->size == wanted.size && old->type == wanted.type &&
		    old->id == wanted.id) {
			*old = wanted;
			return true;
		}
	}
	struct cui_access *grown = realloc(mapping->access, (mapping->accesses + 1) * sizeof(*grown));
	if (!grown)
		return false;
	mapping->access = grown;
	mapping->access[mapping->accesses++] = wanted;
	return true;
}

void cui_reservation_add(struct cui_range *reservation)
{
	struct cui_range *stale;

	while ((stale = first_overlap(reservations, reservation->start, reservation->end))) {
		take_out(&reservations, stale);
		free(stale);
	}
	insert(&reservations, reservation);
}

void cui_reservation_remove(uint64_t start)
{
	struct cui_range *found = first_overlap(reservations, start, start + 1);

	if (found && found->start == start) {
		take_out(&reservations, found);
		free(found);
	}
}

struct cui_range *cui_reservation_at(uint64_t start, uint64_t end)
{
	return first_overlap(reservations, start, end);
}

void cui_ledger_reset(void)
{
	/* what the parent's ledger says is not true here, and freeing it could meet a broken heap */
	pthread_mutex_init(&mutex, NULL);
	pthread_cond_init(&ended, NULL);
	for (unsigned int i = 0; i < CUI_SPACES; i++)
		calls[i] = NULL;
	for (unsigned int i = 0; i < BUCKETS; i++)
		buckets[i] = NULL;
	for (unsigned int i = 0; i < CUI_NOTE_COUNT; i++)
		atomic_store(&notes[i], 0);
	first = last = NULL;
	mappings = reservations = NULL;
	spares = NULL;
	waiting = 0;
	atomic_store(&imports, 0);
}
