/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The versions of dlsym and dlclose: the architecture's first, and GLIBC_2.34,
 * when they moved from libdl to libc.  The shim exports both, so that another
 * interposer's dlvsym finds it, and looks both up.
 */
#if defined(__x86_64__)
#define BASE_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define BASE_VERSION "GLIBC_2.17"
#else
#error "dlsym's first version is known for x86-64 and aarch64 only"
#endif
