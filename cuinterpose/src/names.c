// SPDX-License-Identifier: Apache-2.0
/*
 * Which names the shim covers.  Asked for every look-up of a name that begins
 * with "cu" and for every answer that a resolver gives, so: no hash, no string
 * function of libc, and one letter or the length rules most names out.
 */
#include "shim.h"

/* Sorted: the driver's names, then the runtime's ("cuM" < "cud"). */
static const char *const covered[] = {
#define X(name, ...) #name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) #name,
	CUI_RUNTIME_NEWER(X, 13)
#undef X
};

static int order_of(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return (unsigned char)*a - (unsigned char)*b;
}

/* Most of the 500 names that a runtime asks for have a third letter or a length that no covered name has. */
bool cui_covers(const char *name)
{
#define X(covered_name, ...) | UINT64_C(1) << (sizeof(#covered_name) - 1)
	static const uint64_t lengths = 0 CUI_DRIVER(X) CUI_RUNTIME_NEWER(X, 13);
#undef X
	unsigned int low = 0, high = sizeof(covered) / sizeof(covered[0]), length = 2;

	if (name[0] != 'c' || name[1] != 'u' || (name[2] != 'M' && name[2] != 'G' && name[2] != 'd'))
		return false;
	while (length < 64 && name[length])
		length++;
	if (length == 64 || !(lengths >> length & 1))
		return false;
	while (low < high) {
		unsigned int middle = (low + high) / 2;
		int order = order_of(name + 2, covered[middle] + 2);

		if (order == 0)
			return true;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return false;
}
