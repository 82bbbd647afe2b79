/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ticket: a sealed memfd of 256 bytes that stands for a shareable handle until
 * its creator is asked for the real one.  Little-endian; every byte without a
 * name is zero and checked, so that a reader refuses what it does not know.
 *
 *	0	8	"CUTICKET"
 *	8	2	version, 1
 *	10	2	size, 256
 *	12	2	kind
 *	14	2	flags, 0
 *	16	16	participant: who created the resource, not zero
 *	32	16	resource: which, not zero; unguessable, so also the authority to ask
 *	48	2	length of the endpoint, 1 to 107
 *	50	2	type of the endpoint, 1: a path
 *	52	204	endpoint: absolute, without a NUL; then zeros
 *
 * cuinterpose/ticket.py is the same format in Python; a test holds them together.
 */
#ifndef CUI_TICKET_H
#define CUI_TICKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUI_TICKET_SIZE 256
#define CUI_ENDPOINT_MAX 107 /* what sockaddr_un holds, less a NUL */

enum cui_kind {
	CUI_UNICAST = 1,
	CUI_MULTICAST = 2,
};

struct cui_identity {
	uint8_t bytes[16];
};

struct cui_ticket {
	uint16_t kind;
	struct cui_identity participant;
	struct cui_identity resource;
	char endpoint[CUI_ENDPOINT_MAX + 1];
};

enum cui_ticket_class {
	CUI_NOT_A_TICKET, /* left to the driver to judge */
	CUI_TICKET,
	CUI_BAD_TICKET, /* has the magic and is not valid: the driver must never see it */
};

bool cui_identity_zero(const struct cui_identity *identity);
bool cui_identity_same(const struct cui_identity *a, const struct cui_identity *b);

/* A fresh identity; 0, or -errno if the kernel gives no random bytes. */
int cui_identity_random(struct cui_identity *identity);

/* false: the ticket breaks a rule above. */
bool cui_ticket_encode(const struct cui_ticket *ticket, uint8_t bytes[CUI_TICKET_SIZE]);
bool cui_ticket_decode(const uint8_t bytes[CUI_TICKET_SIZE], struct cui_ticket *ticket);

/* A descriptor with FD_CLOEXEC that holds these bytes and can no longer change; or -errno. */
int cui_sealed(const char *name, const void *bytes, size_t size);

/* 0, and *fd is a sealed descriptor with FD_CLOEXEC that the caller owns; or -errno, and *fd is -1. */
int cui_ticket_create(const struct cui_ticket *ticket, int *fd);

/* Reads fd and changes nothing of it, its offset included; *ticket is set for CUI_TICKET alone. */
enum cui_ticket_class cui_ticket_classify(int fd, struct cui_ticket *ticket);

#endif
