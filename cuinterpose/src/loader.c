// SPDX-License-Identifier: Apache-2.0
/*
 * The real functions: which loaded objects are libcuda.so.1 and the runtimes,
 * and where their entries are.
 *
 * An object is known by its DT_SONAME alone, wherever it was loaded from and
 * in whatever scope.  Its entries are read from its own symbol table, since
 * dlsym and dlopen drop a dlerror that the application may not have read yet.
 * dlopen and dl_iterate_phdr in a forked child can meet a lock that a vanished
 * thread held: so what dlsym meets is bound from the address alone.
 *
 * Binding needs no lock: every thread stores the same values.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"
#include "track.h"

static struct library {
	const char *soname;
	enum cui_entry first, end;
	const void *_Atomic dynamic; /* the object's dynamic section: its identity */
	uintptr_t base;
	char name[PATH_MAX]; /* as the dynamic loader spells it */
	atomic_bool bound; /* the entries are filled in */
	atomic_bool kept; /* we hold a reference */
} libraries[] = {
	{ "libcuda.so.1", 0, CUI_DRIVER_ENTRIES, NULL, 0, "", false, false },
	{ "libcudart.so.11.0", CUI_cudaGetDriverEntryPoint_11, CUI_cudaGetDriverEntryPoint_12, NULL, 0, "", false, false },
	{ "libcudart.so.12", CUI_cudaGetDriverEntryPoint_12, CUI_cudaGetDriverEntryPoint_13, NULL, 0, "", false, false },
	{ "libcudart.so.13", CUI_cudaGetDriverEntryPoint_13, CUI_ENTRIES, NULL, 0, "", false, false },
};
#define LIBRARIES (sizeof(libraries) / sizeof(libraries[0]))

const char *const cui_entry_names[CUI_ENTRIES] = {
#define X(name, ...) [CUI_##name] = #name,
	CUI_DRIVER(X)
#undef X
#define X(name, generation, ...) [CUI_##name##_##generation] = #name,
	CUI_RUNTIME(X)
#undef X
};

/* Reading symbol tables is part of finding dlsym, which precedes a sanitizer's start: no checks, no strcmp of its. */
#define EARLY __attribute__((no_sanitize("address", "undefined")))

EARLY static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* glibc writes run-time addresses into a dynamic section that is writable, and leaves a read-only one alone. */
EARLY static const void *pointer(uintptr_t base, const ElfW(Dyn) *entry)
{
	return (const void *)(entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr);
}

struct symbols {
	const char *strings;
	const ElfW(Sym) *table;
	const uint32_t *gnu_hash;
	const uint32_t *hash;
	const char *soname;
};

EARLY static struct symbols symbols_of(uintptr_t base, const ElfW(Dyn) *dynamic)
{
	struct symbols symbols = { 0 };
	const ElfW(Dyn) *soname = NULL;

	for (; dynamic->d_tag != DT_NULL; dynamic++) {
		if (dynamic->d_tag == DT_STRTAB)
			symbols.strings = pointer(base, dynamic);
		else if (dynamic->d_tag == DT_SYMTAB)
			symbols.table = pointer(base, dynamic);
		else if (dynamic->d_tag == DT_GNU_HASH)
			symbols.gnu_hash = pointer(base, dynamic);
		else if (dynamic->d_tag == DT_HASH)
			symbols.hash = pointer(base, dynamic);
		else if (dynamic->d_tag == DT_SONAME)
			soname = dynamic;
	}
	if (soname && symbols.strings)
		symbols.soname = symbols.strings + soname->d_un.d_val;
	return symbols;
}

EARLY static void *defined(uintptr_t base, const struct symbols *symbols, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &symbols->table[index];
	unsigned int type = symbol->st_info & 0xf;

	/* An indirect function's value is its resolver, not an address that dlsym would return. */
	if (symbol->st_shndx == SHN_UNDEF || (type != STT_FUNC && type != STT_NOTYPE) ||
	    !same(symbols->strings + symbol->st_name, name))
		return NULL;
	return (void *)(base + symbol->st_value);
}

EARLY static void *find(uintptr_t base, const struct symbols *symbols, const char *name)
{
	void *address = NULL;

	if (!symbols->strings || !symbols->table)
		return NULL;
	if (symbols->gnu_hash) {
		uint32_t buckets = symbols->gnu_hash[0], first = symbols->gnu_hash[1];
		uint32_t words = symbols->gnu_hash[2], hash = 5381;
		const uint32_t *bucket = symbols->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
		const uint32_t *chain = bucket + buckets;

		for (const char *c = name; *c; c++)
			hash = hash * 33 + (unsigned char)*c;
		uint32_t index = buckets ? bucket[hash % buckets] : 0;
		for (; index >= first && index; index++) {
			uint32_t other = chain[index - first];

			if ((other | 1) == (hash | 1) && (address = defined(base, symbols, index, name)))
				return address;
			if (other & 1)
				break;
		}
	} else if (symbols->hash) {
		for (uint32_t index = 1; index < symbols->hash[1] && !address; index++)
			address = defined(base, symbols, index, name);
	}
	return address;
}

EARLY void *cui_defined(uintptr_t base, const void *dynamic, const char *name)
{
	struct symbols symbols = symbols_of(base, dynamic);

	return find(base, &symbols, name);
}

static struct library *library_named(const char *soname)
{
	for (unsigned int i = 0; soname && i < LIBRARIES; i++)
		if (same(libraries[i].soname, soname))
			return &libraries[i];
	return NULL;
}

/* The first object of a soname is the one; a second copy is left alone, and shows up as unrecognised. */
static void bind(uintptr_t base, const ElfW(Dyn) *dynamic, const char *name)
{
	struct symbols symbols = symbols_of(base, dynamic);
	struct library *library = library_named(symbols.soname);
	const void *claimed = NULL;

	if (!library || atomic_load(&library->bound))
		return;
	if (!atomic_compare_exchange_strong(&library->dynamic, &claimed, dynamic) && claimed != dynamic)
		return;
	library->base = base;
	/* the resolvers, which come first, last: what they return must be known by then */
	for (enum cui_entry entry = library->end; entry-- > library->first;) {
		void *address = find(base, &symbols, cui_entry_names[entry]);

		if (address)
			cui_set_entry(entry, address);
	}
	for (unsigned int i = 0; i < PATH_MAX - 1 && name[i]; i++)
		library->name[i] = name[i];
	atomic_store(&library->bound, true);
	__atomic_fetch_or(&cuinterpose_stats.bound, 1u << (library - libraries), __ATOMIC_RELAXED);
}

static int bind_object(struct dl_phdr_info *object, size_t size, void *data)
{
	(void)size, (void)data;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			bind(object->dlpi_addr, (void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
			     object->dlpi_name);
	return 0;
}

bool cui_bind(enum cui_entry entry)
{
	struct library *library = libraries;

	while (entry >= library->end)
		library++;
	if (!atomic_load(&library->bound)) {
		int saved = errno;

		dl_iterate_phdr(bind_object, NULL);
		errno = saved;
	}
	return atomic_load(&library->bound);
}

void *cui_driver_function(const char *name)
{
	const void *dynamic = atomic_load(&libraries[0].dynamic);

	return dynamic && atomic_load(&libraries[0].bound) ? cui_defined(libraries[0].base, dynamic, name) : NULL;
}

/* With CUINTERPOSE_TRACK=1, the tracker: an object beside this one, so that without it there is nothing of it. */
static void load_tracker(void)
{
	static const struct cui_host host = { CUI_TRACK_ABI, cui_entries, cui_driver_function,
					      &cuinterpose_stats.tracked };
	static const char missing[] = "cuinterpose: no " CUI_TRACKER " that fits beside the shim: nothing is tracked\n";
	const char *wanted = getenv("CUINTERPOSE_TRACK");
	char path[PATH_MAX + sizeof("/" CUI_TRACKER)];
	struct link_map *map;
	cui_track_start_fn *start = NULL;
	const void *const *functions = NULL;
	Dl_info info;

	if (!wanted || wanted[0] != '1' || wanted[1] || cui_disabled())
		return;
	/* what was preloaded may be a link to the shim */
	if (dladdr1(libraries, &info, (void **)&map, RTLD_DL_LINKMAP) && realpath(info.dli_fname, path)) {
		strcpy(strrchr(path, '/'), "/" CUI_TRACKER);
		map = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
		if (map)
			start = (cui_track_start_fn *)cui_defined(map->l_addr, map->l_ld, CUI_TRACK_START);
	}
	if (start)
		functions = start(&host);
	if (functions)
		cui_track(functions);
	else
		(void)!write(STDERR_FILENO, missing, sizeof(missing) - 1);
}

/* What a program was linked with is bound before its first call; dlopened libraries are when dlsym meets them. */
__attribute__((constructor)) static void bind_at_start(void)
{
	load_tracker();
	dl_iterate_phdr(bind_object, NULL);
	cui_disabled();
}

/*
 * In the program's own namespace only: the others have no shim, and what they
 * load is none of ours.  dladdr1 and dlinfo take no lock that a fork can break.
 */
void cui_bind_at(const void *address)
{
	Dl_info info;
	struct link_map *map;
	Lmid_t namespace;

	if (address && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) &&
	    library_named(symbols_of(map->l_addr, map->l_ld).soname) &&
	    dlinfo(map, RTLD_DI_LMID, &namespace) == 0 && namespace == LM_ID_BASE)
		bind(map->l_addr, map->l_ld, map->l_name);
}

/* Called before anything is unloaded: a saved address must not outlive its library. */
void cui_keep_mapped(void)
{
	for (struct library *library = libraries; library < libraries + LIBRARIES; library++) {
		if (!atomic_load(&library->bound) || atomic_load(&library->kept))
			continue;
		/* asked for once; set afterwards, since another thread's dlclose must wait for it */
		dlopen(library->name, RTLD_LAZY | RTLD_NOLOAD);
		atomic_store(&library->kept, true);
	}
}
