// SPDX-License-Identifier: Apache-2.0
/*
 * A ticket's validation beside a plain read of a memfd, and an EXPORT beside a plain exchange of as many bytes and
 * one descriptor over the same kind of socket: ns, best of many, taken in turns.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../cuinterpose/src/endpoint.h"
#include "../cuinterpose/src/peer.h"

enum { ROUNDS = 25, READS = 20000, EXCHANGES = 1000 };

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static enum cui_status lookup(void *context, const struct cui_identity *resource, uint16_t kind, int *fd, int32_t *cuda)
{
	(void)context, (void)resource, (void)kind, (void)cuda;
	*fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
	return CUI_OK;
}

static struct cui_endpoint endpoint;
static struct cui_server server = { .lookup = lookup, .timeout_ms = 1000 };

static void *serve(void *unused)
{
	cui_endpoint_serve(&endpoint, &server);
	return unused;
}

/* The least that passes a descriptor: no checks, no deadlines, one buffer. */
static void pass(int connection, int fd, int receiving)
{
	char bytes[64] = { 0 };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { .align = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec part = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	if (receiving) {
		recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
		memcpy(&fd, CMSG_DATA(&control.align), sizeof(fd));
		close(fd);
	} else {
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
		sendmsg(connection, &message, MSG_NOSIGNAL);
	}
}

static void *serve_plainly(void *listener)
{
	char bytes[64];

	for (;;) {
		struct pollfd ready = { .fd = (int)(long)listener, .events = POLLIN };

		poll(&ready, 1, -1);
		int connection = accept4((int)(long)listener, NULL, NULL, SOCK_CLOEXEC), fd;
		if (connection < 0)
			return NULL;
		recv(connection, bytes, sizeof(bytes), 0);
		fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
		pass(connection, fd, 0);
		close(fd);
		close(connection);
	}
}

static void exchange_plainly(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char bytes[64] = { 0 };
	int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, path);
	if (connect(connection, (struct sockaddr *)&address, sizeof(address)) < 0 || send(connection, bytes, sizeof(bytes), 0) < 0)
		abort();
	pass(connection, -1, 1);
	close(connection);
}

static double lesser(double a, double b)
{
	return a < b ? a : b;
}

int main(void)
{
	char directory[] = "/tmp/cuinterpose-bench-XXXXXX", plain[64];
	struct cui_ticket ticket = { .kind = CUI_UNICAST }, read;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	double reading = 1e18, validating = 1e18, device = 1e18, passing = 1e18, exporting = 1e18, start;
	int sealed, null = open("/dev/null", O_RDWR), listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	pthread_t threads[2];
	char bytes[CUI_TICKET_SIZE];

	if (!mkdtemp(directory) || cui_identity_random(&ticket.participant) || cui_identity_random(&ticket.resource) ||
	    cui_endpoint_open(&endpoint, directory, &ticket.participant))
		return 1;
	strcpy(ticket.endpoint, endpoint.path);
	server.coordinator = geteuid();
	server.stop = eventfd(0, EFD_CLOEXEC);
	snprintf(plain, sizeof(plain), "%s/plain", directory);
	strcpy(address.sun_path, plain);
	if (cui_ticket_create(&ticket, &sealed) || bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64))
		return 1;
	/* alone: with threads every system call on a descriptor also counts its users */
	for (int round = 0; round < ROUNDS; round++) {
		start = now();
		for (int i = 0; i < READS; i++)
			if (pread(sealed, bytes, sizeof(bytes), 0) != sizeof(bytes))
				return 1;
		reading = lesser(reading, (now() - start) / READS);
		start = now();
		for (int i = 0; i < READS; i++)
			if (cui_ticket_classify(sealed, &read) != CUI_TICKET)
				return 1;
		validating = lesser(validating, (now() - start) / READS);
		start = now();
		for (int i = 0; i < READS; i++)
			if (cui_ticket_classify(null, &read) != CUI_NOT_A_TICKET)
				return 1;
		device = lesser(device, (now() - start) / READS);
	}
	pthread_create(&threads[0], NULL, serve, NULL);
	pthread_create(&threads[1], NULL, serve_plainly, (void *)(long)listener);
	for (int round = 0; round < ROUNDS; round++) {
		start = now();
		for (int i = 0; i < EXCHANGES; i++)
			exchange_plainly(plain);
		passing = lesser(passing, (now() - start) / EXCHANGES);
		start = now();
		for (int i = 0; i < EXCHANGES; i++) {
			int32_t cuda;
			int fd;

			if (cui_export(&ticket, 1000, &fd, &cuda) != CUI_OK)
				return 1;
			close(fd);
		}
		exporting = lesser(exporting, (now() - start) / EXCHANGES);
	}
	printf("plain read of a memfd\t%.0f\nvalidation of a ticket\t%.0f\nnot a ticket (device)\t%.0f\n", reading, validating, device);
	printf("plain exchange of a descriptor\t%.0f\nEXPORT\t%.0f\n", passing, exporting);
	unlink(plain);
	if (eventfd_write(server.stop, 1) || pthread_join(threads[0], NULL))
		return 1;
	cui_endpoint_close(&endpoint);
	rmdir(directory);
	return 0;
}
