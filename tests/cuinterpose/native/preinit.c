// SPDX-License-Identifier: Apache-2.0
/*
 * Linked with libcuda, and looks a name up before libc's environment exists: .preinit_array precedes
 * every constructor, libc's included.  What the shim then believes of CUINTERPOSE_DISABLE must not last.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned int flags);

static void *early;
static int had_environment;

static void look_up_first(void)
{
	had_environment = environ != NULL;
	early = dlsym(RTLD_DEFAULT, "cuMemCreate");
}
__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = look_up_first;

int main(void)
{
	void *now = dlsym(RTLD_DEFAULT, "cuMemCreate");
	Dl_info info;

	cuInit(0);
	if (had_environment || !early || !now || !dladdr(now, &info))
		return 1;
	return strstr(info.dli_fname, getenv("CUINTERPOSE_DISABLE") ? "libcuda.so" : "libcuinterpose") ? 0 : 2;
}
