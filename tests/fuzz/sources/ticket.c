// SPDX-License-Identifier: Apache-2.0
/* Tickets: what decodes encodes to the same bytes, and a descriptor's contents are classified as their bytes decode. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ticket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t bytes[CUI_TICKET_SIZE] = { 0 }, again[CUI_TICKET_SIZE];
	struct cui_ticket ticket, read;
	int fd;

	memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
	if (cui_ticket_decode(bytes, &ticket) && (!cui_ticket_encode(&ticket, again) || memcmp(bytes, again, sizeof(bytes))))
		abort();
	fd = memfd_create("ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		abort();
	if (write(fd, data, size) != (ssize_t)size || lseek(fd, 1, SEEK_SET) != 1)
		abort();
	/* Not sealed: never a ticket. */
	if (cui_ticket_classify(fd, &read) == CUI_TICKET || lseek(fd, 0, SEEK_CUR) != 1)
		abort();
	close(fd);
	return 0;
}
