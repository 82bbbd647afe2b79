// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "peer.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "owned.h"

enum cui_status cui_connect(const char *endpoint, unsigned int timeout_ms, int *connected)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strnlen(endpoint, CUI_ENDPOINT_MAX + 1);
	CUI_OWNED int fd = -1;
	int result;

	if (endpoint[0] != '/' || length > CUI_ENDPOINT_MAX)
		return CUI_TRANSPORT;
	memcpy(address.sun_path, endpoint, length);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || cui_socket_timeout(fd, timeout_ms) < 0)
		return CUI_TRANSPORT;
	do
		result = connect(fd, (struct sockaddr *)&address, sizeof(address));
	while (result < 0 && errno == EINTR);
	if (result < 0)
		return CUI_TRANSPORT;
	if (!cui_peer_is(fd, geteuid()))
		return CUI_PEER;
	*connected = cui_take(&fd);
	return CUI_OK;
}

/* PEER and TRANSPORT are never sent; a descriptor comes with OK and with nothing else. */
static bool possible(const struct cui_frame *reply, bool has_fd)
{
	if (reply->status < CUI_OK || reply->status > CUI_OP || reply->status == CUI_PEER)
		return false;
	return has_fd == (reply->status == CUI_OK) && (reply->cuda != 0) == (reply->status == CUI_CUDA);
}

enum cui_status cui_export(const struct cui_ticket *ticket, unsigned int timeout_ms, int *fd, int32_t *cuda)
{
	static atomic_uint_fast64_t serial;
	struct cui_frame request = {
		.op = CUI_EXPORT,
		.kind = ticket->kind,
		.serial = atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed) + 1,
		.participant = ticket->participant,
		.resource = ticket->resource,
	};
	struct cui_frame reply;
	CUI_OWNED int socket = -1;
	CUI_OWNED int received = -1;
	enum cui_status status;

	*fd = -1;
	*cuda = 0;
	status = cui_connect(ticket->endpoint, timeout_ms, &socket);
	if (status != CUI_OK)
		return status;
	status = cui_frame_send(socket, &request, -1);
	if (status != CUI_OK)
		return status;
	status = cui_frame_receive(socket, &reply, &received);
	if (status != CUI_OK)
		return status;
	if (reply.op != (CUI_EXPORT | CUI_REPLY) || reply.serial != request.serial || reply.kind != request.kind ||
	    reply.length || !cui_identity_same(&reply.participant, &request.participant) ||
	    !cui_identity_same(&reply.resource, &request.resource) || !possible(&reply, received >= 0))
		return CUI_MALFORMED;
	*cuda = reply.cuda;
	*fd = cui_take(&received);
	return reply.status;
}

int cui_status_to_cuda(enum cui_status status, int32_t cuda)
{
	switch (status) {
	case CUI_OK:
		return 0; /* CUDA_SUCCESS */
	case CUI_PEER:
		return 800; /* CUDA_ERROR_NOT_PERMITTED */
	case CUI_PARTICIPANT:
	case CUI_UNKNOWN:
	case CUI_KIND:
		return 400; /* CUDA_ERROR_INVALID_HANDLE */
	case CUI_BUSY:
		return 600; /* CUDA_ERROR_NOT_READY */
	case CUI_CUDA:
		return cuda;
	case CUI_RESOURCES:
		return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
	case CUI_TRANSPORT:
		return 304; /* CUDA_ERROR_OPERATING_SYSTEM */
	case CUI_MALFORMED:
	case CUI_VERSION:
	case CUI_OP:
		break;
	}
	return 999; /* CUDA_ERROR_UNKNOWN: a bug, or mixed versions */
}
