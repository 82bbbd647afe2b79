// SPDX-License-Identifier: Apache-2.0
/* A preloaded library whose constructor looks names up before anybody else's. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *early_found[2];

__attribute__((constructor)) static void look_up_early(void)
{
	early_found[0] = dlsym(RTLD_DEFAULT, "getppid");
	early_found[1] = dlsym(RTLD_DEFAULT, "cuMemCreate");
}
