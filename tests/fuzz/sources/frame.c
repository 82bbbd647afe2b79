// SPDX-License-Identifier: Apache-2.0
/* Frames: what decodes encodes to the same bytes, and a message from a socket is what its bytes decode to. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *exact = malloc(size ? size : 1), again[CUI_FRAME_SIZE];
	struct cui_frame frame, received;
	enum cui_status status;
	int pair[2], fd = -1;

	memcpy(exact, data, size);
	status = cui_frame_decode(exact, size, &frame);
	if (status == CUI_OK) {
		cui_frame_encode(&frame, again);
		if (size < sizeof(again) || memcmp(exact, again, sizeof(again)))
			abort();
	}
	if (!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		cui_socket_timeout(pair[1], 1000);
		/* A receiver takes no payload. */
		if (send(pair[0], exact, size, 0) == (ssize_t)size && size &&
		    (cui_frame_receive(pair[1], &received, &fd) == CUI_OK) != (status == CUI_OK && size == CUI_FRAME_SIZE))
			abort();
		if (fd >= 0)
			abort();
		close(pair[0]);
		close(pair[1]);
	}
	free(exact);
	return 0;
}
