// SPDX-License-Identifier: Apache-2.0
/*
 * Which names the shim covers.  Asked for every look-up of a name that begins
 * with "cu" and for every answer that a resolver gives: most names are told apart
 * by their length and three letters, and only what is left is compared.
 *
 * The table is filled by who asks first; threads that fill it at once put the same
 * names in, and which goes where does not matter.
 */
#include "shim.h"

static const char *const covered[] = {
#define X(name, ...) #name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) #name,
	CUI_RUNTIME_NEWER(X, 13)
#undef X
};
#define COVERED (sizeof(covered) / sizeof(covered[0]))

enum { LONGEST = 64, SLOTS = 2048 };
static _Atomic uint8_t slots[SLOTS]; /* a name's number plus one */
static atomic_bool filled;
_Static_assert(COVERED < UINT8_MAX, "a number and one more fit in a slot");

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* 0: not a name of ours, which have from 3 to 63 characters. */
static unsigned int length_of(const char *name)
{
	unsigned int length = 0;

	while (length < LONGEST && name[length])
		length++;
	return length == LONGEST || length < 3 ? 0 : length;
}

static unsigned int first_slot(const char *name, unsigned int length)
{
	return (((length * 37 + name[2]) * 37 + name[length / 2]) * 37 + name[length - 1]) % SLOTS;
}

static void fill(void)
{
	for (unsigned int i = 0; i < COVERED; i++) {
		unsigned int slot = first_slot(covered[i], length_of(covered[i]));
		uint8_t there = 0;

		while (!atomic_compare_exchange_strong(&slots[slot], &there, i + 1) && there != i + 1) {
			slot = (slot + 1) % SLOTS;
			there = 0;
		}
	}
	atomic_store_explicit(&filled, true, memory_order_release);
}

bool cui_covers(const char *name)
{
	unsigned int length = length_of(name);
	uint8_t there;

	if (!length || name[0] != 'c' || name[1] != 'u')
		return false;
	if (!atomic_load_explicit(&filled, memory_order_acquire))
		fill();
	for (unsigned int slot = first_slot(name, length);
	     (there = atomic_load_explicit(&slots[slot], memory_order_relaxed)); slot = (slot + 1) % SLOTS)
		if (same(covered[there - 1], name))
			return true;
	return false;
}
