// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "frame.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "bytes.h"
#include "owned.h"

static const char MAGIC[4] = { 'C', 'U', 'I', 'F' };

enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_OP = 6,
	AT_STATUS = 8,
	AT_KIND = 12,
	AT_FLAGS = 14,
	AT_SERIAL = 16,
	AT_LENGTH = 24,
	AT_CUDA = 28,
	AT_PARTICIPANT = 32,
	AT_RESOURCE = 48,
	VERSION = 1,
};

void cui_frame_encode(const struct cui_frame *frame, uint8_t bytes[CUI_FRAME_SIZE])
{
	memset(bytes, 0, CUI_FRAME_SIZE);
	memcpy(bytes + AT_MAGIC, MAGIC, sizeof(MAGIC));
	cui_put16(bytes + AT_VERSION, VERSION);
	cui_put16(bytes + AT_OP, frame->op);
	cui_put32(bytes + AT_STATUS, frame->status);
	cui_put16(bytes + AT_KIND, frame->kind);
	cui_put64(bytes + AT_SERIAL, frame->serial);
	cui_put32(bytes + AT_LENGTH, frame->length);
	cui_put32(bytes + AT_CUDA, frame->cuda);
	memcpy(bytes + AT_PARTICIPANT, frame->participant.bytes, sizeof(frame->participant.bytes));
	memcpy(bytes + AT_RESOURCE, frame->resource.bytes, sizeof(frame->resource.bytes));
}

enum cui_status cui_frame_decode(const uint8_t *bytes, size_t size, struct cui_frame *frame)
{
	if (size < CUI_FRAME_SIZE || memcmp(bytes + AT_MAGIC, MAGIC, sizeof(MAGIC)) != 0)
		return CUI_MALFORMED;
	if (cui_get16(bytes + AT_VERSION) != VERSION)
		return CUI_VERSION;
	uint32_t length = cui_get32(bytes + AT_LENGTH);
	if (cui_get16(bytes + AT_FLAGS) != 0 || size - CUI_FRAME_SIZE != length)
		return CUI_MALFORMED;
	frame->op = cui_get16(bytes + AT_OP);
	frame->status = (int32_t)cui_get32(bytes + AT_STATUS);
	frame->kind = cui_get16(bytes + AT_KIND);
	frame->serial = cui_get64(bytes + AT_SERIAL);
	frame->length = length;
	frame->cuda = (int32_t)cui_get32(bytes + AT_CUDA);
	memcpy(frame->participant.bytes, bytes + AT_PARTICIPANT, sizeof(frame->participant.bytes));
	memcpy(frame->resource.bytes, bytes + AT_RESOURCE, sizeof(frame->resource.bytes));
	return CUI_OK;
}

/*
 * Room for 16 although one is allowed: CMSG_SPACE of one int holds two, both of
 * which the kernel installs without a word.  Of more than fit it closes the rest
 * and sets MSG_CTRUNC.
 */
enum { ROOM = 16 };

union control {
	struct cmsghdr align;
	char space[CMSG_SPACE(ROOM * sizeof(int))];
};

enum cui_status cui_frame_send(int socket, const struct cui_frame *frame, int fd)
{
	uint8_t bytes[CUI_FRAME_SIZE];
	union control control = { .align = { .cmsg_level = SOL_SOCKET } };
	struct iovec part = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t sent;

	cui_frame_encode(frame, bytes);
	if (fd >= 0) {
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(fd));
	}
	do
		sent = sendmsg(socket, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(bytes) ? CUI_OK : CUI_TRANSPORT;
}

struct received {
	int fds[ROOM];
	unsigned int count;
	bool odd; /* something other than descriptors came */
};

static void close_received(const struct received *received)
{
	for (unsigned int i = 0; i < received->count; i++)
		cui_close(&received->fds[i]);
}

/* Everything first, judgement later: what is not collected here would leak. */
static void collect(struct msghdr *message, struct received *received)
{
	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
		size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
			received->odd = true;
			continue;
		}
		/* the control buffer holds no more than ROOM in all */
		memcpy(received->fds + received->count, CMSG_DATA(part), count * sizeof(int));
		received->count += count;
	}
}

enum cui_status cui_frame_receive(int socket, struct cui_frame *frame, int *fd)
{
	uint8_t bytes[CUI_FRAME_SIZE];
	union control control;
	__attribute__((cleanup(close_received))) struct received received = { .count = 0 };
	struct iovec part = { .iov_base = bytes, .iov_len = sizeof(bytes) };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t size;

	*fd = -1;
	do
		size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	if (size < 0)
		return CUI_TRANSPORT;
	collect(&message, &received);
	if (size == 0 && !received.count)
		return CUI_TRANSPORT;
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || received.odd || received.count > 1)
		return CUI_MALFORMED;
	enum cui_status status = cui_frame_decode(bytes, size, frame);
	if (status == CUI_OK && received.count)
		*fd = cui_take(&received.fds[0]);
	return status;
}

int cui_socket_timeout(int socket, unsigned int milliseconds)
{
	struct timeval limit = { .tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000 };

	if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	return 0;
}

bool cui_peer_is(int socket, unsigned int uid)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && size == sizeof(peer) &&
	       peer.uid == uid;
}
