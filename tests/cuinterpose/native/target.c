// SPDX-License-Identifier: Apache-2.0
/* A process to be looked at: loads what its arguments say (global:, local:, deep:, new: before a name), then waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *name = strchr(argv[i], ':') + 1;
		void *handle = argv[i][0] == 'n' ? dlmopen(LM_ID_NEWLM, name, RTLD_NOW) :
			       dlopen(name, argv[i][0] == 'g' ? RTLD_NOW | RTLD_GLOBAL :
					    argv[i][0] == 'd' ? RTLD_NOW | RTLD_DEEPBIND :
								RTLD_NOW);

		if (!handle) {
			printf("%s\n", dlerror());
			return 1;
		}
		dlsym(handle, "cuMemCreate");
	}
	printf("ready\n");
	fflush(stdout);
	getchar();
	return 0;
}
