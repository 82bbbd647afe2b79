/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The creator's side: one SOCK_SEQPACKET socket per process, for peers and for a
 * coordinator, in a directory that belongs to its user alone.  Its name is the
 * participant in 32 hexadecimal digits, so there is never one to unlink first.
 */
#ifndef CUI_ENDPOINT_H
#define CUI_ENDPOINT_H

#include <stddef.h>
#include <sys/types.h>

#include "frame.h"

struct cui_endpoint {
	int directory;
	int listener;
	pid_t owner; /* a forked child closes, and unlinks nothing */
	struct cui_identity participant;
	char path[CUI_ENDPOINT_MAX + 1]; /* for tickets */
};

/*
 * Asked for one resource: CUI_OK and *fd is a fresh descriptor that the server
 * closes once it is sent; or CUI_UNKNOWN, CUI_KIND, CUI_BUSY, CUI_RESOURCES; or
 * CUI_CUDA and *cuda is the driver's result, not 0.
 */
typedef enum cui_status cui_lookup(void *context, const struct cui_identity *resource, uint16_t kind, int *fd,
				   int32_t *cuda);

/* Before a descriptor is sent: to whom. */
typedef void cui_served(void *context, const struct cui_identity *resource, pid_t client);

/* Asked for something that is neither IDENTIFY nor EXPORT: answers it, now or on a duplicate of the connection. */
typedef void cui_control(void *context, const struct cui_frame *request, int client);

struct cui_server {
	cui_lookup *lookup;
	void *context;
	unsigned int timeout_ms; /* for a client to ask, and to take its answer */
	uid_t coordinator; /* who else may ask, or our own uid */
	int stop; /* serving ends when this descriptor is readable */
	cui_served *served; /* or NULL */
	cui_control *control; /* or NULL: CUI_OP is the answer */
};

/*
 * $CUINTERPOSE_DIR, else $XDG_RUNTIME_DIR/cuinterpose (made if it is missing).
 * 0 or -errno: -ENOENT if neither is set.
 */
int cui_endpoint_directory(char *path, size_t size);

/*
 * 0 or -errno.  The directory must be absolute, no link, ours, and closed to
 * group and others: -EPERM otherwise.  -ENAMETOOLONG: no ticket could name it.
 */
int cui_endpoint_open(struct cui_endpoint *endpoint, const char *directory, const struct cui_identity *participant);
void cui_endpoint_close(struct cui_endpoint *endpoint);

/* Until server->stop is readable: 0; or -errno. */
int cui_endpoint_serve(const struct cui_endpoint *endpoint, const struct cui_server *server);

/* The answer to one request that has been received with fd (or -1); *answer is owned by the caller.  For serve and tests. */
void cui_endpoint_answer(const struct cui_endpoint *endpoint, const struct cui_server *server,
			 const struct cui_frame *request, bool has_fd, struct cui_frame *reply, int *answer);

#endif
