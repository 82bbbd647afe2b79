/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of 64 bytes on a SOCK_SEQPACKET socket, one each way, little-endian.
 *
 *	0	4	"CUIF"
 *	4	2	version, 1
 *	6	2	op; in a reply plus 0x8000
 *	8	4	status, 0 in a request
 *	12	2	kind
 *	14	2	flags, 0
 *	16	8	serial, echoed
 *	24	4	length of the payload: a message has 64 bytes and these
 *	28	4	cuda: the CUresult when status is CUI_CUDA
 *	32	16	participant, echoed
 *	48	16	resource, echoed
 *
 * A reply carries exactly one descriptor if and only if its status is CUI_OK and
 * its op is EXPORT or INVENTORY; nothing else carries any.
 *
 * Ops from 16 are a coordinator's.  Of them the request's resource is two numbers,
 * u32 each and then zeros: how many ms the step may take, and how many ms the process
 * waits for the next step before it puts everything back.  The reply's kind is the
 * phase that the process is in now, plus 256 times the stage that failed, its resource
 * what that was about, its cuda the driver's result.
 *
 * cuinterpose/frame.py is the same in Python.
 */
#ifndef CUI_FRAME_H
#define CUI_FRAME_H

#include <stddef.h>

#include "ticket.h"

#define CUI_FRAME_SIZE 64

enum cui_op {
	CUI_IDENTIFY = 1,
	CUI_EXPORT = 2,
	/* of a coordinator, to a tracked process: see cycle.c */
	CUI_FIRST_CONTROL = 16,
	CUI_INVENTORY = 16, /* a sealed descriptor with JSON */
	CUI_STATE = 17, /* the phase, and nothing else */
	CUI_CLOSE = 18,
	CUI_LET_GO = 19,
	CUI_HOLD = 20,
	CUI_LOCK = 21,
	CUI_SERVE = 22,
	CUI_IMPORT = 23,
	CUI_OPEN_GATE = 24,
	CUI_REPLY = 0x8000,
};

enum cui_status {
	CUI_OK = 0,
	CUI_MALFORMED = 1,
	CUI_VERSION = 2,
	CUI_PEER = 3, /* of another uid; found here, never sent */
	CUI_PARTICIPANT = 4, /* another participant listens there now */
	CUI_UNKNOWN = 5, /* no such resource */
	CUI_KIND = 6, /* it is of the other kind */
	CUI_BUSY = 7, /* a checkpoint is being taken */
	CUI_CUDA = 8, /* the driver refused */
	CUI_RESOURCES = 9, /* no descriptor left */
	CUI_OP = 10,
	CUI_TRANSPORT = 11, /* no socket, timeout, hang-up; found here, never sent */
};

struct cui_frame {
	uint16_t op;
	int32_t status;
	uint16_t kind;
	uint64_t serial;
	uint32_t length;
	int32_t cuda;
	struct cui_identity participant;
	struct cui_identity resource;
};

void cui_frame_encode(const struct cui_frame *frame, uint8_t bytes[CUI_FRAME_SIZE]);

/* CUI_OK, CUI_MALFORMED or CUI_VERSION; size is the whole message's.  *frame is set for CUI_OK alone. */
enum cui_status cui_frame_decode(const uint8_t *bytes, size_t size, struct cui_frame *frame);

/* CUI_OK or CUI_TRANSPORT.  fd goes along unless it is -1, and stays the caller's. */
enum cui_status cui_frame_send(int socket, const struct cui_frame *frame, int fd);

/*
 * One message without payload.  CUI_OK: *fd is the one descriptor that came, the caller's to close, or -1.
 * CUI_MALFORMED, CUI_VERSION, CUI_TRANSPORT: *fd is -1, and what came is closed.
 */
enum cui_status cui_frame_receive(int socket, struct cui_frame *frame, int *fd);

/* Both limits of a socket; 0 or -errno. */
int cui_socket_timeout(int socket, unsigned int milliseconds);

/* Whether the other end of a connection runs as uid. */
bool cui_peer_is(int socket, unsigned int uid);

#endif
