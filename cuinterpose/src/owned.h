/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor has one owner at every line: a variable that closes it, or the code that took it from there. */
#ifndef CUI_OWNED_H
#define CUI_OWNED_H

#include <errno.h>
#include <unistd.h>

static inline void cui_close(const int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

#define CUI_OWNED __attribute__((cleanup(cui_close)))

static inline int cui_take(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

#endif
