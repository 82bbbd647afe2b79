// SPDX-License-Identifier: Apache-2.0
/*
 * dlsym and dlclose.
 *
 * glibc's dlsym reads its return address to learn who asks, so a name that is
 * not covered leaves by a jump (dlsym.S).  A covered name must be answered as
 * if this object were not loaded, and only then does the rule apply.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <unistd.h>

#include "glibc.h"
#include "shim.h"

typedef void *dlsym_fn(void *handle, const char *name);
typedef int dlclose_fn(void *handle);

dlsym_fn *_Atomic cui_real_dlsym;

extern const ElfW(Dyn) own_dynamic[] __asm__("_DYNAMIC") __attribute__((visibility("hidden")));

/*
 * The next definition after ours, as the dynamic loader would find it.  dlsym
 * moved from libdl to libc in 2.34 and got that version there.  dlvsym passes by
 * an interposer that has no such version, so what stands between us and its
 * answer is looked at too: those objects were there at start and never go.
 *
 * Runs before any constructor, a sanitizer's included.  All threads find the same.
 */
__attribute__((no_sanitize("address", "undefined"))) static void *after_us(const char *name)
{
	Dl_info info;
	struct link_map *map, *end;
	void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.34"), *interposer = NULL;

	if (!found)
		found = dlvsym(RTLD_NEXT, name, BASE_VERSION);
	if (!found || !dladdr1(found, &info, (void **)&end, RTLD_DL_LINKMAP) ||
	    !dladdr1(own_dynamic, &info, (void **)&map, RTLD_DL_LINKMAP))
		return found;
	for (map = map->l_next; map && map != end && !interposer; map = map->l_next)
		interposer = cui_defined(map->l_addr, map->l_ld, name);
	return interposer ? interposer : found;
}

__attribute__((no_sanitize("address", "undefined"))) dlsym_fn *cui_find_real_dlsym(void)
{
	static const char complaint[] = "cuinterpose: this C library has no dlsym that we know\n";
	dlsym_fn *found = after_us("dlsym");

	if (!found) {
		(void)!write(STDERR_FILENO, complaint, sizeof(complaint) - 1);
		_exit(127);
	}
	atomic_store_explicit(&cui_real_dlsym, found, memory_order_release);
	return found;
}

/* leave != 0: let the real dlsym answer the caller itself. */
struct answer {
	void *address;
	unsigned long leave;
};
static const struct answer LEAVE = { NULL, 1 };

/* What the application would have got; the rule is applied to it. */
static struct answer found(void *address)
{
	if (!address || cui_disabled())
		return (struct answer){ address, 0 };
	enum cui_entry entry = cui_entry_at(address);
	if (entry == CUI_NO_ENTRY) {
		cui_bind_at(address);
		entry = cui_entry_at(address);
	}
	if (entry != CUI_NO_ENTRY) {
		atomic_fetch_add_explicit(&cuinterpose_stats.by_dlsym, 1, memory_order_relaxed);
		return (struct answer){ cui_wrappers[entry], 0 };
	}
	if (!cui_is_wrapper(address))
		atomic_fetch_add_explicit(&cuinterpose_stats.unrecognised, 1, memory_order_relaxed);
	return (struct answer){ address, 0 };
}

static dlclose_fn *real_dlclose(void)
{
	static dlclose_fn *_Atomic real;
	dlclose_fn *now = atomic_load_explicit(&real, memory_order_acquire);

	if (!now) {
		now = after_us("dlclose");
		atomic_store_explicit(&real, now, memory_order_release);
	}
	return now;
}

/*
 * The caller's own dependencies, for what its dlopen group alone can see.
 * glibc fills in an object's search list when it is opened by itself.  The
 * look-up comes last: if it fails, its message is the one to leave behind.
 */
static void *in_dependencies_of(const void *caller, const char *name, dlsym_fn *real)
{
	Dl_info info;
	struct link_map *map;

	if (!dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) || !map->l_name[0])
		return NULL;
	int saved = errno;
	void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
	if (handle)
		real_dlclose()(handle);
	errno = saved;
	return handle ? real(handle, name) : NULL;
}

struct walk {
	const char *name;
	uintptr_t caller;
	bool caller_seen;
	bool we_are_first; /* we come after the caller, before any other definition */
	void *address; /* the first definition after the caller that is not ours */
};

static int step(struct dl_phdr_info *object, size_t size, void *data)
{
	struct walk *walk = data;
	const ElfW(Dyn) *dynamic = NULL;
	bool is_caller = false;

	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_DYNAMIC)
			dynamic = (const void *)start;
		if (segment->p_type == PT_LOAD && walk->caller - start < segment->p_memsz)
			is_caller = true;
	}
	if (is_caller)
		walk->caller_seen = true;
	else if (walk->caller_seen && dynamic == own_dynamic)
		walk->we_are_first = true;
	else if (walk->caller_seen && dynamic)
		walk->address = cui_defined(object->dlpi_addr, dynamic, walk->name);
	return walk->address != NULL;
}

/*
 * Ahead of us are the program and what was preloaded before us: what follows us
 * in the global scope is exactly their answer.  Behind us glibc's own search
 * answers, unless it would answer with the driver's entry; whether it would is
 * judged from the load order and from what the caller can see at all, since its
 * search list is not public.
 */
static struct answer next(const void *caller, const char *name, dlsym_fn *real)
{
	struct walk walk = { .name = name, .caller = (uintptr_t)caller };

	dl_iterate_phdr(step, &walk);
	if (!walk.caller_seen)
		return LEAVE;
	if (walk.we_are_first)
		return found(real(RTLD_NEXT, name));
	if (cui_entry_at(walk.address) == CUI_NO_ENTRY)
		cui_bind_at(walk.address);
	if (cui_entry_at(walk.address) == CUI_NO_ENTRY)
		return LEAVE;
	if (!real(RTLD_NEXT, name) && !in_dependencies_of(caller, name, real))
		return (struct answer){ NULL, 0 };
	return found(walk.address);
}

/* From dlsym.S, for names that begin with "cu". */
struct answer cui_dlsym(void *handle, const char *name, const void *caller)
{
	if (!cui_covers(name))
		return LEAVE;
	dlsym_fn *real = atomic_load_explicit(&cui_real_dlsym, memory_order_acquire);
	if (!real)
		real = cui_find_real_dlsym();
	if (handle == RTLD_NEXT)
		return next(caller, name, real);

	/* Asked from here, RTLD_DEFAULT is the same global scope that everybody searches first. */
	void *address = real(handle, name);
	if (cui_is_wrapper(address)) {
		if (handle != RTLD_DEFAULT && ((struct link_map *)handle)->l_ld == own_dynamic)
			return (struct answer){ address, 0 };
		address = real(RTLD_NEXT, name);
	}
	if (!address && handle == RTLD_DEFAULT)
		address = in_dependencies_of(caller, name, real);
	return found(address);
}

/* The only way to unload a library, hence the one place where references on those in use must be held. */
int cui_dlclose(void *handle);
__asm__(".symver cui_dlclose, dlclose@" BASE_VERSION);
__attribute__((visibility("default"), used)) int cui_dlclose(void *handle)
{
	cui_keep_mapped();
	return real_dlclose()(handle);
}
extern __typeof__(cui_dlclose) cui_dlclose_2_34 __attribute__((alias("cui_dlclose"), visibility("default"), used));
__asm__(".symver cui_dlclose_2_34, dlclose@@GLIBC_2.34");
