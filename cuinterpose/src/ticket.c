// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "bytes.h"
#include "owned.h"

static const char MAGIC[8] = { 'C', 'U', 'T', 'I', 'C', 'K', 'E', 'T' };

enum {
	AT_MAGIC = 0,
	AT_VERSION = 8,
	AT_SIZE = 10,
	AT_KIND = 12,
	AT_FLAGS = 14,
	AT_PARTICIPANT = 16,
	AT_RESOURCE = 32,
	AT_LENGTH = 48,
	AT_TYPE = 50,
	AT_ENDPOINT = 52,
	VERSION = 1,
	TYPE_PATH = 1,
};

/* The kernel's numbers (uapi fcntl.h, memfd.h): headers of glibc 2.17's time lack them. */
enum {
	OUR_F_ADD_SEALS = 1033,
	OUR_F_GET_SEALS = 1034,
	OUR_SEALS = 0x0f, /* F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE */
	OUR_MFD_CLOEXEC = 1,
	OUR_MFD_ALLOW_SEALING = 2,
	OUR_MFD_NOEXEC_SEAL = 8, /* since Linux 6.3; EINVAL before */
};

bool cui_identity_zero(const struct cui_identity *identity)
{
	static const struct cui_identity zero;

	return cui_identity_same(identity, &zero);
}

bool cui_identity_same(const struct cui_identity *a, const struct cui_identity *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

int cui_identity_random(struct cui_identity *identity)
{
	for (;;) {
		long got = syscall(SYS_getrandom, identity->bytes, sizeof(identity->bytes), 0);

		if (got == (long)sizeof(identity->bytes) && !cui_identity_zero(identity))
			return 0;
		if (got < 0 && errno != EINTR)
			return -errno;
	}
}

/* The length, or 0 if there can be no such endpoint. */
static size_t endpoint_length(const char *endpoint)
{
	size_t length = strnlen(endpoint, CUI_ENDPOINT_MAX + 1);

	return endpoint[0] == '/' && length <= CUI_ENDPOINT_MAX ? length : 0;
}

bool cui_ticket_encode(const struct cui_ticket *ticket, uint8_t bytes[CUI_TICKET_SIZE])
{
	size_t length = endpoint_length(ticket->endpoint);

	if (!length || (ticket->kind != CUI_UNICAST && ticket->kind != CUI_MULTICAST) ||
	    cui_identity_zero(&ticket->participant) || cui_identity_zero(&ticket->resource))
		return false;
	memset(bytes, 0, CUI_TICKET_SIZE);
	memcpy(bytes + AT_MAGIC, MAGIC, sizeof(MAGIC));
	cui_put16(bytes + AT_VERSION, VERSION);
	cui_put16(bytes + AT_SIZE, CUI_TICKET_SIZE);
	cui_put16(bytes + AT_KIND, ticket->kind);
	memcpy(bytes + AT_PARTICIPANT, ticket->participant.bytes, sizeof(ticket->participant.bytes));
	memcpy(bytes + AT_RESOURCE, ticket->resource.bytes, sizeof(ticket->resource.bytes));
	cui_put16(bytes + AT_LENGTH, length);
	cui_put16(bytes + AT_TYPE, TYPE_PATH);
	memcpy(bytes + AT_ENDPOINT, ticket->endpoint, length);
	return true;
}

/* What is valid is what encoding the same fields gives again: every unnamed byte is checked by that. */
bool cui_ticket_decode(const uint8_t bytes[CUI_TICKET_SIZE], struct cui_ticket *ticket)
{
	uint8_t again[CUI_TICKET_SIZE];
	struct cui_ticket read = { .kind = cui_get16(bytes + AT_KIND) };
	size_t length = cui_get16(bytes + AT_LENGTH);

	if (length > CUI_ENDPOINT_MAX)
		return false;
	memcpy(read.participant.bytes, bytes + AT_PARTICIPANT, sizeof(read.participant.bytes));
	memcpy(read.resource.bytes, bytes + AT_RESOURCE, sizeof(read.resource.bytes));
	memcpy(read.endpoint, bytes + AT_ENDPOINT, length);
	if (!cui_ticket_encode(&read, again) || memcmp(again, bytes, sizeof(again)) != 0)
		return false;
	*ticket = read;
	return true;
}

int cui_sealed(const char *name, const void *bytes, size_t size)
{
	unsigned int flags = OUR_MFD_CLOEXEC | OUR_MFD_ALLOW_SEALING;
	CUI_OWNED int memfd = syscall(SYS_memfd_create, name, flags | OUR_MFD_NOEXEC_SEAL);

	if (memfd < 0 && errno == EINVAL)
		memfd = syscall(SYS_memfd_create, name, flags);
	if (memfd < 0)
		return -errno;
	ssize_t written = pwrite(memfd, bytes, size, 0);
	if (written != (ssize_t)size)
		return written < 0 ? -errno : -EIO;
	if (fcntl(memfd, OUR_F_ADD_SEALS, OUR_SEALS) < 0)
		return -errno;
	return cui_take(&memfd);
}

int cui_ticket_create(const struct cui_ticket *ticket, int *fd)
{
	uint8_t bytes[CUI_TICKET_SIZE];

	*fd = -1;
	if (!cui_ticket_encode(ticket, bytes))
		return -EINVAL;
	int sealed = cui_sealed("cuinterpose-ticket", bytes, sizeof(bytes));
	if (sealed < 0)
		return sealed;
	*fd = sealed;
	return 0;
}

/*
 * Two system calls.  What answers F_GET_SEALS is a file of tmpfs or hugetlbfs: a
 * directory there cannot be read, and reading one byte more than a ticket has shows
 * a file that is longer.
 */
static enum cui_ticket_class classify(int fd, struct cui_ticket *ticket)
{
	uint8_t bytes[CUI_TICKET_SIZE + 1];
	ssize_t got;
	/* before the content: what is sealed now stays as it is read */
	int seals = fcntl(fd, OUR_F_GET_SEALS);

	if (seals < 0)
		return CUI_NOT_A_TICKET;
	do
		got = pread(fd, bytes, sizeof(bytes), 0);
	while (got < 0 && errno == EINTR);
	if (got < (ssize_t)sizeof(MAGIC) || memcmp(bytes, MAGIC, sizeof(MAGIC)) != 0)
		return CUI_NOT_A_TICKET;
	/* a superset: the kernel may have added F_SEAL_EXEC */
	if ((seals & OUR_SEALS) != OUR_SEALS || got != CUI_TICKET_SIZE || !cui_ticket_decode(bytes, ticket))
		return CUI_BAD_TICKET;
	return CUI_TICKET;
}

enum cui_ticket_class cui_ticket_classify(int fd, struct cui_ticket *ticket)
{
	int saved = errno;
	enum cui_ticket_class verdict = classify(fd, ticket);

	errno = saved;
	return verdict;
}
