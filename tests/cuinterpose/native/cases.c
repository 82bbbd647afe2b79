// SPDX-License-Identifier: Apache-2.0
/*
 * cases NAME: one property of the shim, in a process of its own, under
 * LD_PRELOAD.  Exit 0 and "ok N checks", or 1 and the check that failed.
 * With -DDIRECT the program is linked with libcuda.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake.h"

static unsigned int checks;

#define CHECK(condition)                                                                \
	do {                                                                            \
		checks++;                                                               \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

typedef int function(uint64_t, ...);
typedef int create_fn(uint64_t, uint64_t, uint64_t, uint64_t);
typedef int resolve4_fn(const char *, void **, int, uint64_t);
typedef int resolve5_fn(const char *, void **, int, uint64_t, int *);
typedef void *lookup_fn(void *, const char *);

struct stats {
	uint32_t struct_size, abi, disabled, bound;
	uint64_t by_dlsym, by_resolver, by_runtime, unrecognised;
	uint32_t tracked, reserved;
};

static const struct {
	const char *symbol, *base;
	unsigned int since;
	int count;
} surface[] = {
#define F(symbol, base, since, count) { #symbol, #base, since, count },
	FAKE_VMM(F) FAKE_MULTICAST(F) FAKE_DEVICE_EXPLICIT(F)
#undef F
};
#define COUNT (sizeof(surface) / sizeof(surface[0]))

/* of the driver on the library path; 0 when none is */
static unsigned int driver_version(void)
{
	const char *version = getenv("CASE_DRIVER");

	return version ? atoi(version) : 0;
}

static int in_object(const void *address, const char *part)
{
	Dl_info info;

	return address && dladdr((void *)address, &info) && strstr(info.dli_fname, part);
}

static int is_wrapper_of(const void *address, const char *symbol)
{
	Dl_info info;

	return in_object(address, "libcuinterpose") && dladdr((void *)address, &info) && info.dli_saddr == address &&
	       strcmp(info.dli_sname, symbol) == 0;
}

static int is_entry_of(const void *address, const char *symbol)
{
	Dl_info info;

	return in_object(address, "libcuda.so") && dladdr((void *)address, &info) && info.dli_saddr == address &&
	       strcmp(info.dli_sname, symbol) == 0;
}

static const struct stats *stats(void)
{
	return dlsym(RTLD_DEFAULT, "cuinterpose_stats");
}

static void *load(const char *name, int flags)
{
	void *handle = dlopen(name, flags);

	if (!handle)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(handle);
	return handle;
}

static void *driver(void)
{
	return load("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static const struct fake_call *last_call(void *handle)
{
	const struct fake_call *(*last)(void) = dlsym(handle, "fake_last_call");

	return last();
}

/* the driver's own word for where a function of its is */
static void *entry(void *handle, const char *symbol)
{
	void *(*of)(const char *) = dlsym(handle, "fake_entry");

	return of(symbol);
}

/* Calls it with as many arguments as it has, and looks at what the driver's function got and gave. */
static void check_forwarding(void *handle, void *address, const char *symbol, int count)
{
	int (*f)(int, int, int, int, int, int, int) = address;
	int result = f(0x11111111, 0x22222222, 0x33333333, 0x44444444, 0x55555555, 0x66666666, 0x77777777);
	const struct fake_call *call = last_call(handle);

	CHECK(strcmp(call->symbol, symbol) == 0);
	for (int i = 0; i < count; i++)
		CHECK((uint32_t)call->arguments[i] == 0x11111111u * (i + 1));
	/* the result is the function's own number */
	void *real = entry(handle, symbol);
	CHECK(is_entry_of(real, symbol));
	int (*r)(int, int, int, int, int, int, int) = real;
	CHECK(result >= 7000 && result == r(0, 0, 0, 0, 0, 0, 0));
}

static void dlsym_handle(void)
{
	void *handle = driver();

	for (unsigned int i = 0; i < COUNT; i++) {
		void *address = dlsym(handle, surface[i].symbol);

		if (surface[i].since > driver_version() && strcmp(surface[i].symbol, surface[i].base) != 0) {
			CHECK(!address && strstr(dlerror(), surface[i].symbol));
		} else if (surface[i].since > driver_version()) {
			CHECK(!address);
		} else {
			CHECK(is_wrapper_of(address, surface[i].symbol));
			check_forwarding(handle, address, surface[i].symbol, surface[i].count);
		}
	}
	CHECK(is_wrapper_of(dlsym(handle, "cuGetProcAddress"), "cuGetProcAddress"));
	CHECK(is_wrapper_of(dlsym(handle, "cuGetProcAddress_v2"), "cuGetProcAddress_v2"));
	CHECK(is_entry_of(dlsym(handle, "cuInit"), "cuInit"));
	CHECK(is_entry_of(dlsym(handle, "cuMemMapOther"), "cuMemMapOther"));
	/* a handle of a library that only depends on libcuda */
	void *dependent = load("libdirect.so", RTLD_NOW | RTLD_LOCAL);
	CHECK(is_wrapper_of(dlsym(dependent, "cuMemCreate"), "cuMemCreate"));
	CHECK(stats()->unrecognised == 0);
}

static void resolver(void)
{
	void *handle = driver(), *pfn;
	resolve4_fn *four = (resolve4_fn *)dlsym(handle, "cuGetProcAddress");
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");
	int status;

	for (unsigned int i = 0; i < COUNT; i++) {
		if (surface[i].since > driver_version())
			continue;
		for (int k = 0; k < 3; k++) {
			int flags = strstr(surface[i].symbol, "_ptsz") ? 2 : 0, result;

			pfn = NULL;
			status = -1;
			result = k == 0 ? four(surface[i].base, &pfn, surface[i].since, flags) :
					  five(surface[i].base, &pfn, surface[i].since, flags,
					       k == 1 ? &status : NULL);
			CHECK(result == 0 && is_wrapper_of(pfn, surface[i].symbol));
			CHECK(k != 1 || status == 0);
			check_forwarding(handle, pfn, surface[i].symbol, surface[i].count);
		}
	}
	/* the resolver hands itself out, in the ABI that was asked for */
	CHECK(five("cuGetProcAddress", &pfn, 11030, 0, NULL) == 0 && is_wrapper_of(pfn, "cuGetProcAddress"));
	CHECK(four("cuGetProcAddress", &pfn, 12000, 0) == 0 && is_wrapper_of(pfn, "cuGetProcAddress_v2"));
	CHECK(five("cuInit", &pfn, 2000, 0, NULL) == 0 && is_entry_of(pfn, "cuInit"));
	CHECK(stats()->unrecognised == 0 && stats()->by_resolver > COUNT / 2);
}

static void abi_selection(void)
{
	static const char *const bases[] = { "cuMulticastBindMem", "cuMulticastBindAddr" };
	resolve5_fn *five = (resolve5_fn *)dlsym(driver(), "cuGetProcAddress_v2");
	static char untouched;

	for (int i = 0; i < 2; i++) {
		char second[40];
		void *pfn = &untouched;
		int status = -7;

		snprintf(second, sizeof(second), "%s_v2", bases[i]);
		int at_12010 = five(bases[i], &pfn, 12010, 0, &status);
		if (driver_version() < 12010) {
			CHECK(at_12010 == 0 && !pfn && status == 1);
			continue;
		}
		CHECK(at_12010 == 0 && is_wrapper_of(pfn, bases[i]) && status == 0);
		pfn = &untouched;
		int at_13010 = five(bases[i], &pfn, 13010, 0, &status);
		if (driver_version() >= 13010)
			CHECK(at_13010 == 0 && is_wrapper_of(pfn, second));
		else if (driver_version() >= 13000)
			CHECK(at_13010 == 1 && pfn == &untouched);
		else /* accepted, and answered with the newest that this driver has */
			CHECK(at_13010 == 0 && is_wrapper_of(pfn, bases[i]));
		/* a suffixed name is never a resolver's */
		CHECK(five(second, &pfn, 12010, 0, &status) == 0 && !pfn && status == 1);
	}
}

static void resolver_failure(void)
{
	void *handle = driver(), *pfn = NULL;
	resolve4_fn *four = (resolve4_fn *)dlsym(handle, "cuGetProcAddress");
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");

	CHECK(four("cuMemCreate", &pfn, FAKE_FAILING_VERSION, 0) == 999 && is_entry_of(pfn, "cuMemCreate"));
	CHECK(five("cuMemCreate", &pfn, FAKE_FAILING_VERSION, 0, NULL) == 999 && is_entry_of(pfn, "cuMemCreate"));
	pfn = &pfn;
	CHECK(four("cuNoSuch", &pfn, 12000, 0) == 500 && pfn == &pfn);
	CHECK(four("cuMemCreate", &pfn, 12000, 7) == 1 && pfn == &pfn);
	CHECK(five("cuNoSuch", &pfn, 12000, 0, NULL) == 0 && !pfn);
}

static const char *runtime_name(int generation)
{
	return generation == 11 ? "libcudart.so.11.0" : generation == 12 ? "libcudart.so.12" : "libcudart.so.13";
}

static void runtimes(void)
{
	for (int generation = 11; generation < 14; generation++) {
		void *handle = load(runtime_name(generation), RTLD_NOW | RTLD_LOCAL), *pfn = NULL;
		int status = -7;
		/* an 11.x caller passes three arguments; what lies where the fourth would be must not be touched */
		int (*plain)(const char *, void **, unsigned long long, int *) =
			dlsym(handle, "cudaGetDriverEntryPoint");
		int (*ptsz)(const char *, void **, unsigned long long, int *) =
			dlsym(handle, "cudaGetDriverEntryPoint_ptsz");
		int (*by_version)(const char *, void **, unsigned int, unsigned long long, int *) =
			dlsym(handle, "cudaGetDriverEntryPointByVersion");
		int *argument = generation == 11 ? (int *)8 : &status;

		CHECK(in_object(plain, "libcuinterpose") && in_object(ptsz, "libcuinterpose"));
		CHECK(plain("cuMemCreate", &pfn, 0, argument) == 0 && is_wrapper_of(pfn, "cuMemCreate"));
		CHECK(ptsz("cuMemMapArrayAsync", &pfn, 0, argument) == 0 &&
		      is_wrapper_of(pfn, "cuMemMapArrayAsync_ptsz"));
		CHECK(plain("cuMemMapArrayAsync", &pfn, 0, argument) == 0 && is_wrapper_of(pfn, "cuMemMapArrayAsync"));
		CHECK(plain("cuInit", &pfn, 0, argument) == 0 && is_entry_of(pfn, "cuInit"));
		CHECK((generation == 11) == !by_version);
		if (by_version) {
			CHECK(in_object(by_version, "libcuinterpose"));
			CHECK(by_version("cuMulticastBindMem", &pfn, 12010, 0, NULL) == 0);
			CHECK(driver_version() < 12010 ? !pfn : is_wrapper_of(pfn, "cuMulticastBindMem"));
			CHECK(status == 0);
		}
		setenv("FAKE_RUNTIME_FAILS", "1", 1);
		pfn = &status;
		status = -7;
		CHECK(plain("cuMemCreate", &pfn, 0, argument) == 100 && pfn == &status && status == -7);
		unsetenv("FAKE_RUNTIME_FAILS");
	}
	CHECK(stats()->bound == 15 && stats()->unrecognised == 0);
}

/* Libraries bound to 12 and to 13 in one process: each reaches its own, and each runtime asks with its own version. */
static void two_runtimes(void)
{
	typedef void *entry_point_fn(const char *, int *);
	void *twelve = load("libuser12.so", RTLD_NOW | RTLD_LOCAL), *thirteen = load("libuser13.so", RTLD_NOW | RTLD_LOCAL);
	int result;
	void *pfn = ((entry_point_fn *)dlsym(twelve, "user12_entry_point"))("cuMulticastBindMem", &result);

	CHECK(result == 0 && is_wrapper_of(pfn, "cuMulticastBindMem"));
	pfn = ((entry_point_fn *)dlsym(thirteen, "user13_entry_point"))("cuMulticastBindMem", &result);
	CHECK(result == 0 && is_wrapper_of(pfn, "cuMulticastBindMem_v2"));
	void *eleven = load("libuser11.so", RTLD_NOW | RTLD_LOCAL);
	pfn = ((entry_point_fn *)dlsym(eleven, "user11_entry_point"))("cuMemCreate", &result);
	CHECK(result == 0 && is_wrapper_of(pfn, "cuMemCreate"));
	CHECK(stats()->bound == 15 && stats()->unrecognised == 0);
}

/* The known phantom: a symbol that is ours and that the loaded runtime, or none, has. */
static void phantom_runtime(void)
{
	int (*by_version)(const char *, void **, unsigned int, unsigned long long, int *) =
		dlvsym(RTLD_DEFAULT, "cudaGetDriverEntryPointByVersion", "libcudart.so.12");
	void *pfn = NULL;

	CHECK(in_object(by_version, "libcuinterpose"));
	CHECK(by_version("cuMemCreate", &pfn, 12000, 0, NULL) == 3 && !pfn); /* cudaErrorInitializationError */
	load("libcudart.so.12", RTLD_NOW); /* a 12.0 */
	CHECK(by_version("cuMemCreate", &pfn, 12000, 0, NULL) == 500 && !pfn); /* cudaErrorSymbolNotFound */
	CHECK(!dlsym(RTLD_DEFAULT, "cudaGetDriverEntryPoint"));
}

#ifdef DIRECT
#define F(symbol, base, since, count) function symbol;
FAKE_MULTICAST(F)
FAKE_DEVICE_EXPLICIT(F)
FAKE_WATCHED(F)
#undef F
function cuMemCreate, cuMemRelease, cuMemAddressReserve, cuMemAddressFree, cuMemRetainAllocationHandle, cuMemMap, cuMemMapArrayAsync,
	cuMemMapArrayAsync_ptsz, cuMemUnmap, cuMemSetAccess, cuMemGetAccess, cuMemExportToShareableHandle,
	cuMemImportFromShareableHandle, cuMemGetAllocationGranularity, cuMemGetAllocationPropertiesFromHandle;

static void direct(void)
{
	void *handle = driver();

	CHECK(stats()->bound == 1); /* bound before the first call */
#define F(symbol, base, since, count)                                               \
	if (since <= driver_version())                                              \
		check_forwarding(handle, (void *)symbol, #symbol, count);           \
	else                                                                        \
		CHECK(symbol(1, 2ull, 3ull, 4ull, 5ull, 6ull, 7ull) == 500);
	FAKE_VMM(F) FAKE_MULTICAST(F) FAKE_DEVICE_EXPLICIT(F)
#undef F
	/* what dlsym and a resolver say does not depend on the program's own PLT slot for the name */
	void *pfn = NULL;
	CHECK(is_wrapper_of(dlsym(handle, "cuMemCreate"), "cuMemCreate"));
	CHECK(((resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2"))("cuMemCreate", &pfn, 12000, 0, NULL) == 0);
	CHECK(is_wrapper_of(pfn, "cuMemCreate"));
	CHECK(stats()->unrecognised == 0);
}
#else
/* A weak reference finds the shim's, driver or not: a limit. */
extern __attribute__((weak)) int cuMulticastBindMem_v2(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
extern __attribute__((weak)) create_fn cuMemCreate;

static void weak_reference(void)
{
	CHECK(cuMulticastBindMem_v2 && cuMemCreate);
	CHECK(cuMemCreate(1, 2, 3, 4) == 3); /* CUDA_ERROR_NOT_INITIALIZED */
	driver();
	CHECK(cuMemCreate(1, 2, 3, 4) >= 7000);
	CHECK(cuMulticastBindMem_v2(1, 2, 3, 4, 5, 6, 7) == 500); /* CUDA_ERROR_NOT_FOUND */
}
#endif

/* A message that the application has not read yet outlives a first call of every kind. */
static void pending_dlerror(void)
{
	void *handle = load("libdirect.so", RTLD_NOW | RTLD_LOCAL), *pfn;
	int (*create)(uint64_t) = dlsym(handle, "direct_create");

	CHECK(!dlopen("libno-such.so", RTLD_NOW));
	CHECK(stats()->bound == 0); /* ... which clears it, as any dlsym does */
	CHECK(!dlopen("libno-such.so", RTLD_NOW));
	errno = 77;
	CHECK(create(5) >= 7000 && errno == 77); /* looks for the driver */
	const char *text = dlerror();
	CHECK(text && strstr(text, "libno-such.so"));
	CHECK(stats()->bound == 1);
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");
	CHECK(!dlopen("libno-such.so", RTLD_NOW));
	CHECK(five("cuMemCreate", &pfn, 12000, 0, NULL) == 0);
	CHECK(((create_fn *)pfn)(1, 2, 3, 4) >= 7000);
	text = dlerror();
	/* and what dlerror returned stays readable across a call, as without the shim */
	CHECK(text && ((create_fn *)pfn)(1, 2, 3, 4) >= 7000 && strstr(text, "libno-such.so"));
	/* success leaves nothing behind, whatever was looked up on the way */
	CHECK(dlsym(handle, "cuMemCreate") && !dlerror());
	CHECK(!dlsym(handle, "cuMemCreatee") && dlerror());
}

/* The application closes the driver; addresses that it was given go on working. */
static void closed_driver(void)
{
	void *handle = load("libdirect.so", RTLD_NOW | RTLD_LOCAL);
	int (*create)(uint64_t) = dlsym(handle, "direct_create");

	CHECK(create(1) >= 7000); /* bound by a call, with no reference taken yet */
	create_fn *kept = entry(handle, "cuMemCreate");
	CHECK(is_entry_of(kept, "cuMemCreate"));
	CHECK(dlclose(handle) == 0);
	CHECK(is_entry_of(kept, "cuMemCreate")); /* still mapped */
	CHECK(!dlopen("libdirect.so", RTLD_NOW | RTLD_NOLOAD));
	handle = driver();
	create_fn *again = (create_fn *)dlsym(handle, "cuMemCreate");
	CHECK(is_wrapper_of(again, "cuMemCreate"));
	CHECK(dlclose(handle) == 0);
	CHECK(again(1, 2, 3, 4) >= 7000);
	CHECK(stats()->unrecognised == 0);
}

/* Opened, closed and opened again before any covered look-up: nothing of ours keeps it. */
static void unused_driver(void)
{
	void *handle = driver();

	CHECK(dlclose(handle) == 0);
	CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

static void repeated_next(void)
{
	load("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	void *first = dlsym(RTLD_NEXT, "cuMemCreate");

	CHECK(is_wrapper_of(first, "cuMemCreate"));
	for (int i = 0; i < 1000; i++)
		CHECK(dlsym(RTLD_NEXT, "cuMemCreate") == first);
	lookup_fn *plugin = (lookup_fn *)dlsym(load("libplugin.so", RTLD_NOW | RTLD_LOCAL), "plugin_dlsym");
	lookup_fn *direct = (lookup_fn *)dlsym(load("libdirect.so", RTLD_NOW | RTLD_LOCAL), "direct_dlsym");
	for (int i = 0; i < 1000; i++) {
		CHECK(plugin(RTLD_DEFAULT, "cuMemCreate") == first);
		CHECK(direct(RTLD_DEFAULT, "cuMemCreate") == first);
	}
}

/* Only through what the caller's own group sees, and only to those callers. */
static void private_scopes(void)
{
	lookup_fn *plugin = (lookup_fn *)dlsym(load("libplugin.so", RTLD_NOW | RTLD_LOCAL), "plugin_dlsym");
	lookup_fn *direct = (lookup_fn *)dlsym(load("libdirect.so", RTLD_NOW | RTLD_LOCAL), "direct_dlsym");

	CHECK(!plugin(RTLD_DEFAULT, "cuMemCreate") && dlerror());
	CHECK(!dlsym(RTLD_DEFAULT, "cuMemCreate") && dlerror());
	CHECK(!dlsym(dlopen(NULL, RTLD_NOW), "cuMemCreate") && dlerror());
	CHECK(is_wrapper_of(direct(RTLD_DEFAULT, "cuMemCreate"), "cuMemCreate") && !dlerror());
	CHECK(is_wrapper_of(direct(RTLD_NEXT, "cuMemCreate"), "cuMemCreate") && !dlerror());
	CHECK(plugin(RTLD_DEFAULT, "dep_private") && direct(RTLD_DEFAULT, "direct_private"));
}

/* A limit: glibc also searches the group that a dependency was loaded with; that list is not public. */
static void dependency_of_group(void)
{
	void *handle = load("libdirect.so", RTLD_NOW | RTLD_LOCAL);
	lookup_fn *dep = (lookup_fn *)dlsym(handle, "dep_dlsym");

	CHECK(dep(RTLD_DEFAULT, "direct_private")); /* off the surface it does */
	CHECK(!dep(RTLD_DEFAULT, "cuMemCreate") && dlerror());
	CHECK(dep(handle, "cuMemCreate"));
}

/* errno is the caller's, though its dependencies were opened and closed meanwhile (by an interposer that changes it). */
static void errno_of_default(void)
{
	lookup_fn *direct = (lookup_fn *)dlsym(load("libdirect.so", RTLD_NOW | RTLD_LOCAL), "direct_dlsym");
	lookup_fn *plugin = (lookup_fn *)dlsym(load("libplugin.so", RTLD_NOW | RTLD_LOCAL), "plugin_dlsym");
	const int *opened = dlsym(RTLD_DEFAULT, "interposed_calls");

	CHECK(opened);
	for (int i = 0; i < 2; i++) {
		int before = *opened;

		errno = 77;
		void *found = (i ? plugin : direct)(RTLD_DEFAULT, "cuMemMap");
		CHECK(errno == 77);
		CHECK(*opened == before + 1);
		CHECK((found == NULL) == (i == 1));
	}
}

/* The shim asked for by its own handle answers with what it exports, a driver or none. */
static void own_handle(void)
{
	Dl_info info;

	CHECK(dladdr((void *)stats(), &info));
	void *own = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	CHECK(own);
	for (int loaded = 0; loaded < 2; loaded++) {
		for (unsigned int i = 0; i < COUNT; i++)
			CHECK(is_wrapper_of(dlsym(own, surface[i].symbol), surface[i].symbol) && !dlerror());
		CHECK(stats()->by_dlsym == 0 && stats()->unrecognised == 0);
		driver();
	}
}

/* Limits: look-ups that never come to us. */
static void dlvsym_bypass(void)
{
	void *handle = load("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
	void *bypass = dlvsym(handle, "cudaGetDriverEntryPoint", "libcudart.so.12"), *pfn = NULL;

	CHECK(in_object(bypass, "libcudart"));
	/* one layer down it is covered */
	CHECK(((int (*)(const char *, void **, unsigned long long, int *))bypass)("cuMemCreate", &pfn, 0, NULL) == 0);
	CHECK(is_wrapper_of(pfn, "cuMemCreate"));
	CHECK(!dlvsym(driver(), "cuMemCreate", "ANY")); /* the driver has no versions */
}

static void dlmopen_bypass(void)
{
	void *handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);

	CHECK(handle);
	CHECK(is_entry_of(dlsym(handle, "cuMemCreate"), "cuMemCreate"));
	CHECK(stats()->bound == 0 && stats()->unrecognised == 1);
}

static void deepbind_bypass(void)
{
	void *handle = load("libdirect.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	lookup_fn *direct = (lookup_fn *)dlsym(handle, "direct_dlsym");

	CHECK(is_entry_of(direct(RTLD_DEFAULT, "cuMemCreate"), "cuMemCreate"));
	CHECK(((int (*)(uint64_t))dlsym(handle, "direct_create"))(1) >= 7000);
	CHECK(stats()->by_dlsym == 0);
}

/* Two copies of the driver under one soname: the first is ours, the other is seen and left alone. */
static void second_copy(void)
{
	void *first = driver(), *second = load(getenv("CASE_OTHER_DRIVER"), RTLD_NOW | RTLD_LOCAL);

	CHECK(first != second);
	CHECK(is_wrapper_of(dlsym(first, "cuMemCreate"), "cuMemCreate"));
	CHECK(is_entry_of(dlsym(second, "cuMemCreate"), "cuMemCreate"));
	CHECK(stats()->unrecognised == 1);
}

static void versioned_stats(void)
{
	CHECK(stats() && stats()->struct_size == sizeof(struct stats) && stats()->abi == 1);
	CHECK(!stats()->disabled && !stats()->bound && !stats()->by_dlsym);
	CHECK(dlsym(driver(), "cuMemCreate") && stats()->by_dlsym == 1 && stats()->bound == 1);
}

static void disabled(void)
{
	void *handle = driver(), *pfn = NULL;
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");

	CHECK(stats()->disabled == 1);
	CHECK(is_entry_of(five, "cuGetProcAddress_v2") && is_entry_of(dlsym(handle, "cuMemCreate"), "cuMemCreate"));
	CHECK(five("cuMemCreate", &pfn, 12000, 0, NULL) == 0 && is_entry_of(pfn, "cuMemCreate"));
	CHECK(!dlsym(RTLD_DEFAULT, "cuMemCreate"));
	load("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CHECK(is_entry_of(dlsym(RTLD_DEFAULT, "cuMemCreate"), "cuMemCreate"));
	CHECK(is_entry_of(dlsym(RTLD_NEXT, "cuMemCreate"), "cuMemCreate"));
	/* what is linked with us still arrives */
	void *direct = load("libdirect.so", RTLD_NOW | RTLD_LOCAL);
	CHECK(((int (*)(uint64_t))dlsym(direct, "direct_create"))(1) >= 7000);
	CHECK(!stats()->by_dlsym && !stats()->by_resolver && !stats()->unrecognised);
}

/* libearly.so's constructor looked up before this program's main, and before the shim's constructor. */
static void early_lookup(void)
{
	void **early = dlsym(RTLD_DEFAULT, "early_found");

	CHECK(early && early[0] && !early[1]);
	CHECK(stats()->disabled == (getenv("CUINTERPOSE_DISABLE") != NULL));
}

/* A name of one byte at the end of the last mapped page. */
static void page_end(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *area = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(area != MAP_FAILED && munmap(area + page, page) == 0);
	for (const char *const *name = (const char *const[]){ "", "c", "cu", "cuMemCreate", "x", NULL }; *name; name++) {
		char *end = area + page - strlen(*name) - 1;

		strcpy(end, *name);
		CHECK(!dlsym(RTLD_DEFAULT, end));
	}
}

/* Nothing is allocated on the way to the driver once an address is known. */
static void no_allocation(void)
{
	void *handle = driver(), *pfn;
	create_fn *create = (create_fn *)dlsym(handle, "cuMemCreate");
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");
	size_t before = mallinfo2().uordblks;

	for (int i = 0; i < 1000; i++) {
		CHECK(create(1, 2, 3, 4) >= 7000);
		CHECK(five("cuMemCreate", &pfn, 12000, 0, NULL) == 0);
	}
	CHECK(mallinfo2().uordblks == before);
}

/* Another interposer of cuMemCreate, ahead of the shim or behind it. */
static int *counter(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

static void interposer_before(void)
{
	load("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	create_fn *create = (create_fn *)dlsym(RTLD_DEFAULT, "cuMemCreate");

	CHECK(in_object(create, "libinterposer")); /* the definer ahead of us wins, as without us */
	CHECK(create(1, 2, 3, 4) >= 7000 && *counter("interposed_calls") == 1);
	CHECK(is_wrapper_of(dlsym(RTLD_DEFAULT, "cuMemRelease"), "cuMemRelease"));
}

static void interposer_after(void)
{
	load("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	create_fn *create = (create_fn *)dlsym(RTLD_DEFAULT, "cuMemCreate");

	CHECK(in_object(create, "libinterposer")); /* what stands behind us in the global scope */
	CHECK(create(1, 2, 3, 4) >= 7000 && *counter("interposed_calls") == 1);
	/* bound to us, and we call the driver itself: no loop */
	void *direct = load("libdirect.so", RTLD_NOW | RTLD_LOCAL);
	CHECK(((int (*)(uint64_t))dlsym(direct, "direct_create"))(1) >= 7000);
	CHECK(*counter("interposed_calls") == 1);
	CHECK(is_wrapper_of(dlsym(driver(), "cuMemCreate"), "cuMemCreate"));
}

static void dlsym_interposer(void)
{
	void *handle = driver();
	int *lookups = counter("interposed_lookups");

	CHECK(lookups && is_wrapper_of(dlsym(handle, "cuMemCreate"), "cuMemCreate") && *lookups == 1);
	CHECK(is_entry_of(dlsym(handle, "cuInit"), "cuInit") && *lookups == 2);
}

static void forked(void)
{
	create_fn *create = (create_fn *)dlsym(driver(), "cuMemCreate");
	pid_t child = fork();

	if (!child)
		_exit(create(1, 2, 3, 4) >= 7000 && dlsym(driver(), "cuMemMap") ? 0 : 1);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static pthread_barrier_t barrier;
static _Atomic int wrong;

static void *race(void *argument)
{
	int number = (int)(intptr_t)argument;
	static void *_Atomic handle;
	void *pfn = NULL;

	pthread_barrier_wait(&barrier);
	if (number % 4 == 3) { /* the whole first use in a child, while the others are in the midst of theirs */
		pid_t child = fork();
		int status = -1;

		if (!child) {
			alarm(20);
			lookup_fn *dlsym_of_child = dlsym;
			void *own = dlsym_of_child(RTLD_DEFAULT, "cuMemCreate");
			_exit(is_wrapper_of(own, "cuMemCreate") && ((create_fn *)own)(1, 2, 3, 4) >= 7000 ? 0 : 1);
		}
		if (waitpid(child, &status, 0) != child || status)
			wrong++;
	}
	if (!handle)
		handle = dlopen("libcuda.so.1", RTLD_NOW);
	resolve5_fn *five = (resolve5_fn *)dlsym(handle, "cuGetProcAddress_v2");
	if (!is_wrapper_of(five, "cuGetProcAddress_v2"))
		wrong++;
	if (five("cuMemMap", &pfn, 12000, 0, NULL) != 0 || !is_wrapper_of(pfn, "cuMemMap"))
		wrong++;
	void *create = number % 2 ? dlsym(RTLD_DEFAULT, "cuMemCreate") : dlsym(handle, "cuMemCreate");
	if (!is_wrapper_of(create, "cuMemCreate") || ((create_fn *)create)(1, 2, 3, 4) < 7000)
		wrong++;
	return NULL;
}

static void threads(void)
{
	pthread_t thread[16];

	load("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CHECK(pthread_barrier_init(&barrier, NULL, 16) == 0);
	for (intptr_t i = 0; i < 16; i++)
		CHECK(pthread_create(&thread[i], NULL, race, (void *)i) == 0);
	for (int i = 0; i < 16; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(wrong == 0 && stats()->unrecognised == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
#define CASE(name) { #name, name }
#ifdef DIRECT
	CASE(direct),
#else
	CASE(weak_reference),
#endif
	CASE(dlsym_handle),
	CASE(resolver),
	CASE(abi_selection),
	CASE(resolver_failure),
	CASE(runtimes),
	CASE(two_runtimes),
	CASE(phantom_runtime),
	CASE(pending_dlerror),
	CASE(closed_driver),
	CASE(unused_driver),
	CASE(repeated_next),
	CASE(private_scopes),
	CASE(dependency_of_group),
	CASE(errno_of_default),
	CASE(own_handle),
	CASE(dlvsym_bypass),
	CASE(dlmopen_bypass),
	CASE(deepbind_bypass),
	CASE(second_copy),
	CASE(versioned_stats),
	CASE(disabled),
	CASE(early_lookup),
	CASE(page_end),
	CASE(no_allocation),
	CASE(interposer_before),
	CASE(interposer_after),
	CASE(dlsym_interposer),
	CASE(forked),
	CASE(threads),
};

int main(int argc, char **argv)
{
	for (unsigned int i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].run();
			printf("ok %u checks\n", checks);
			return 0;
		}
	fprintf(stderr, "usage: cases NAME, one of");
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		fprintf(stderr, " %s", cases[i].name);
	fprintf(stderr, "\n");
	return 2;
}
