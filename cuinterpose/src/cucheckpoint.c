// SPDX-License-Identifier: Apache-2.0
/* The coordinator's side of cycle.c, for C.  cuinterpose/member.py is the same in Python. */
#define _GNU_SOURCE
#include "../cucheckpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bytes.h"
#include "ledger.h"
#include "owned.h"
#include "peer.h"

#define PUBLIC __attribute__((visibility("default")))

enum { MARGIN_MS = 5000, FIND_MS = 1000, NAME = 2 * sizeof(struct cui_identity) };

#define SAME(step) ((int)CUCHECKPOINT_##step == (int)CUI_##step)
_Static_assert(SAME(CLOSE) && SAME(LET_GO) && SAME(HOLD) && SAME(LOCK) && SAME(SERVE) && SAME(IMPORT) && SAME(OPEN_GATE),
	       "the header's steps are the frame's");

static int error_of(enum cui_status status)
{
	switch (status) {
	case CUI_PEER:
		return -EPERM;
	case CUI_TRANSPORT:
		return -ECONNRESET;
	case CUI_RESOURCES:
		return -EMFILE;
	case CUI_OP:
		return -EOPNOTSUPP;
	case CUI_PARTICIPANT:
		return -ESTALE;
	default:
		return -EPROTO;
	}
}

/* The participant is the last part of the path. */
static bool participant_of(const char *endpoint, struct cui_identity *participant)
{
	const char *name = strrchr(endpoint, '/');

	if (!name || strlen(++name) != NAME || strspn(name, "0123456789abcdef") != NAME)
		return false;
	for (unsigned int i = 0; i < sizeof(participant->bytes); i++) {
		char digits[3] = { name[2 * i], name[2 * i + 1], 0 };

		participant->bytes[i] = strtoul(digits, NULL, 16);
	}
	return true;
}

static pid_t pid_of(int connection)
{
	struct ucred peer = { .pid = 0 };
	socklen_t size = sizeof(peer);

	return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) ? 0 : peer.pid;
}

static void close_directory(DIR **directory)
{
	if (*directory)
		closedir(*directory);
}

PUBLIC int cucheckpoint_find(const char *directory, pid_t pid, char endpoint[108])
{
	__attribute__((cleanup(close_directory))) DIR *entries = opendir(directory);
	struct cui_identity participant;
	struct dirent *entry;

	if (!entries)
		return -errno;
	while ((entry = readdir(entries))) {
		int length = snprintf(endpoint, 108, "%s/%s", directory, entry->d_name);
		CUI_OWNED int connection = -1;

		if (length < 108 && participant_of(endpoint, &participant) &&
		    cui_connect(endpoint, FIND_MS, &connection) == CUI_OK && pid_of(connection) == pid)
			return 0;
	}
	return -ENOENT;
}

PUBLIC int cucheckpoint_open(const char *endpoint, unsigned int timeout_ms)
{
	int connection = -1;
	enum cui_status status = cui_connect(endpoint, timeout_ms, &connection);

	return status == CUI_OK ? connection : error_of(status);
}

/* *fd: the descriptor that came, or -1. */
static int exchange(int connection, struct cui_frame *request, struct cui_frame *reply, int *fd)
{
	static atomic_uint_fast64_t serial;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(address);

	/* the socket was bound through /proc/self/fd, and its name ends in the participant all the same */
	if (getpeername(connection, (struct sockaddr *)&address, &size) ||
	    !participant_of(address.sun_path, &request->participant))
		return -ENOTCONN;
	request->serial = atomic_fetch_add(&serial, 1) + 1;
	enum cui_status status = cui_frame_send(connection, request, -1);
	if (status == CUI_OK)
		status = cui_frame_receive(connection, reply, fd);
	if (status != CUI_OK)
		return error_of(status);
	if (reply->op != (request->op | CUI_REPLY) || reply->serial != request->serial || reply->length ||
	    !cui_identity_same(&reply->participant, &request->participant) ||
	    (*fd >= 0) != (request->op == CUI_INVENTORY && reply->status == CUI_OK))
		return -EPROTO;
	return 0;
}

PUBLIC int cucheckpoint_do(int connection, enum cucheckpoint_step step, unsigned int limit_ms, unsigned int patience_ms,
			   struct cucheckpoint_result *result)
{
	struct cui_frame request = { .op = step }, reply;
	CUI_OWNED int unwanted = -1;

	*result = (struct cucheckpoint_result){ .phase = -1 };
	if (step < CUCHECKPOINT_CLOSE || step > CUCHECKPOINT_OPEN_GATE || limit_ms > INT32_MAX - MARGIN_MS)
		return -EINVAL;
	cui_put32(request.resource.bytes, limit_ms);
	cui_put32(request.resource.bytes + 4, patience_ms);
	int error = cui_socket_timeout(connection, limit_ms + MARGIN_MS);
	if (!error)
		error = exchange(connection, &request, &reply, &unwanted);
	if (error)
		return error;
	result->phase = reply.kind & 0xff;
	result->stage = reply.kind >> 8;
	result->cuda = reply.cuda;
	memcpy(result->resource, reply.resource.bytes, sizeof(result->resource));
	if (reply.status == CUI_CUDA || reply.status == CUI_BUSY)
		return -EAGAIN;
	return reply.status == CUI_OK ? 0 : error_of(reply.status);
}

PUBLIC int cucheckpoint_inventory(const char *endpoint, unsigned int timeout_ms)
{
	struct cui_frame request = { .op = CUI_INVENTORY }, reply;
	CUI_OWNED int connection = cucheckpoint_open(endpoint, timeout_ms);
	CUI_OWNED int fd = -1;

	if (connection < 0)
		return connection;
	int error = exchange(connection, &request, &reply, &fd);
	if (error)
		return error;
	return reply.status == CUI_OK ? cui_take(&fd) : error_of(reply.status);
}

PUBLIC const char *cucheckpoint_words(int stage)
{
	static const char *const words[] = {
		[CUI_STAGE_NONE] = "nothing failed",
		[CUI_STAGE_GATE] = "a call of the program did not return in time",
		[CUI_STAGE_CAPTURE] = "a stream is being captured",
		[CUI_STAGE_SYNCHRONISE] = "waiting for the device (cuCtxSynchronize)",
		[CUI_STAGE_UNMAP] = "cuMemUnmap of an import",
		[CUI_STAGE_RELEASE] = "cuMemRelease of an import",
		[CUI_STAGE_ASK] = "asking the creator for a descriptor",
		[CUI_STAGE_IMPORT] = "cuMemImportFromShareableHandle",
		[CUI_STAGE_MAP] = "cuMemMap at the address that it had",
		[CUI_STAGE_ACCESS] = "cuMemSetAccess",
		[CUI_STAGE_ORDER] = "the process is in another phase, or another coordinator is at work on it",
		[CUI_STAGE_KEEP] = "an import that could not come back",
	};

	return stage >= 0 && (size_t)stage < sizeof(words) / sizeof(words[0]) ? words[stage] : "a stage that is not known";
}
