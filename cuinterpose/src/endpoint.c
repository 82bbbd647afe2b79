// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "owned.h"

enum {
	CLIENTS = 16, /* waited for at once; the rest queue in the kernel */
	BACKLOG = 64,
	NAME_SIZE = 2 * 16 + 1,
	OUT_OF_DESCRIPTORS_MS = 50,
};

int cui_endpoint_directory(char *path, size_t size)
{
	const char *chosen = getenv("CUINTERPOSE_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
	int length;

	if (chosen && *chosen)
		length = snprintf(path, size, "%s", chosen);
	else if (runtime && *runtime)
		length = snprintf(path, size, "%s/cuinterpose", runtime);
	else
		return -ENOENT;
	if (length < 0 || (size_t)length >= size)
		return -ENAMETOOLONG;
	if (!(chosen && *chosen) && mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

static void name_of(const struct cui_identity *participant, char name[NAME_SIZE])
{
	for (unsigned int i = 0; i < sizeof(participant->bytes); i++)
		snprintf(name + 2 * i, 3, "%02x", participant->bytes[i]);
}

int cui_endpoint_open(struct cui_endpoint *endpoint, const char *directory, const struct cui_identity *participant)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat status;
	char name[NAME_SIZE];
	CUI_OWNED int parent = -1;
	CUI_OWNED int fd = -1;

	if (directory[0] != '/' || cui_identity_zero(participant))
		return -EINVAL;
	name_of(participant, name);
	int length = snprintf(endpoint->path, sizeof(endpoint->path), "%s/%s", directory, name);
	if (length < 0 || (size_t)length >= sizeof(endpoint->path))
		return -ENAMETOOLONG;
	parent = open(directory, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (parent < 0 || fstat(parent, &status) < 0)
		return -errno;
	if (status.st_uid != geteuid() || status.st_mode & 077)
		return -EPERM;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* before bind: the node gets this mode, whatever the umask, which belongs to the whole process */
	if (fd < 0 || fchmod(fd, 0600) < 0)
		return -errno;
	/* through the descriptor: the directory that was checked is the one that is used */
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", parent, name);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	if (listen(fd, BACKLOG) < 0) {
		int error = -errno;

		unlinkat(parent, name, 0);
		return error;
	}
	endpoint->participant = *participant;
	endpoint->owner = getpid();
	endpoint->directory = cui_take(&parent);
	endpoint->listener = cui_take(&fd);
	return 0;
}

void cui_endpoint_close(struct cui_endpoint *endpoint)
{
	char name[NAME_SIZE];
	CUI_OWNED int directory = cui_take(&endpoint->directory);
	CUI_OWNED int listener = cui_take(&endpoint->listener);

	name_of(&endpoint->participant, name);
	if (directory >= 0 && endpoint->owner == getpid())
		unlinkat(directory, name, 0);
	(void)listener;
}

void cui_endpoint_answer(const struct cui_endpoint *endpoint, const struct cui_server *server,
			 const struct cui_frame *request, bool has_fd, struct cui_frame *reply, int *answer)
{
	bool mine = cui_identity_same(&request->participant, &endpoint->participant);
	bool anyone = cui_identity_zero(&request->participant);

	*answer = -1;
	*reply = *request;
	reply->op |= CUI_REPLY;
	reply->length = 0;
	reply->cuda = 0;
	if (has_fd || request->status || request->cuda || request->length || request->op & CUI_REPLY) {
		reply->status = CUI_MALFORMED;
	} else if (request->op == CUI_IDENTIFY) {
		if (request->kind || !cui_identity_zero(&request->resource))
			reply->status = CUI_MALFORMED;
		else if (!mine && !anyone)
			reply->status = CUI_PARTICIPANT;
		else
			reply->participant = endpoint->participant;
	} else if (request->op != CUI_EXPORT) {
		reply->status = CUI_OP;
	} else if (!mine) {
		reply->status = CUI_PARTICIPANT;
	} else {
		reply->status = server->lookup(server->context, &request->resource, request->kind, answer, &reply->cuda);
		if (reply->status == CUI_OK && *answer < 0)
			reply->status = CUI_RESOURCES;
		if (reply->status != CUI_CUDA)
			reply->cuda = 0;
	}
}

static pid_t pid_of(int client)
{
	struct ucred peer = { .pid = 0 };
	socklen_t size = sizeof(peer);

	getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size);
	return peer.pid;
}

static bool controls(const struct cui_endpoint *endpoint, const struct cui_frame *request)
{
	return request->op >= CUI_FIRST_CONTROL && !(request->op & CUI_REPLY) && !request->status && !request->cuda &&
	       !request->kind && cui_identity_same(&request->participant, &endpoint->participant);
}

/* One exchange; whatever the client did, the connection is then over. */
static void exchange(const struct cui_endpoint *endpoint, const struct cui_server *server, int client)
{
	struct cui_frame request = { 0 }, reply = { .op = CUI_REPLY };
	CUI_OWNED int received = -1;
	CUI_OWNED int answer = -1;
	enum cui_status status = cui_frame_receive(client, &request, &received);

	if (status == CUI_TRANSPORT)
		return;
	if (status == CUI_OK && server->control && received < 0 && controls(endpoint, &request)) {
		server->control(server->context, &request, client);
		return;
	}
	if (status == CUI_OK)
		cui_endpoint_answer(endpoint, server, &request, received >= 0, &reply, &answer);
	else
		reply.status = status;
	if (answer >= 0 && server->served)
		server->served(server->context, &request.resource, pid_of(client));
	if (cui_frame_send(client, &reply, reply.status == CUI_OK ? answer : -1) == CUI_OK || answer < 0)
		return;
	/* too many descriptors under way, perhaps; if the client is gone, so be it */
	reply.status = CUI_RESOURCES;
	cui_frame_send(client, &reply, -1);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

struct clients {
	struct pollfd fds[2 + CLIENTS]; /* stop, listener, and those who have yet to ask */
	int64_t deadline[2 + CLIENTS];
	unsigned int count;
};

static void drop_all(const struct clients *clients)
{
	for (unsigned int i = 2; i < clients->count; i++)
		cui_close(&clients->fds[i].fd);
}

static void drop(struct clients *clients, unsigned int i)
{
	cui_close(&clients->fds[i].fd);
	clients->count--;
	clients->fds[i] = clients->fds[clients->count];
	clients->deadline[i] = clients->deadline[clients->count];
}

/* 0, or how long to let the listener rest: without a descriptor left it stays readable. */
static int admit(const struct cui_server *server, struct clients *clients, int listener)
{
	CUI_OWNED int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (client < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? OUT_OF_DESCRIPTORS_MS :
												   0;
	/* a stranger gets no answer */
	if (!cui_peer_is(client, geteuid()) && !cui_peer_is(client, server->coordinator))
		return 0;
	clients->deadline[clients->count] = now_ms() + server->timeout_ms;
	clients->fds[clients->count++] = (struct pollfd){ .fd = cui_take(&client), .events = POLLIN };
	return 0;
}

int cui_endpoint_serve(const struct cui_endpoint *endpoint, const struct cui_server *server)
{
	__attribute__((cleanup(drop_all))) struct clients clients = { .count = 2 };
	int rest = 0;

	clients.fds[0] = (struct pollfd){ .fd = server->stop, .events = POLLIN };
	clients.fds[1] = (struct pollfd){ .fd = endpoint->listener };
	for (;;) {
		int64_t now = now_ms(), wait = rest ? rest : -1;

		for (unsigned int i = clients.count; i-- > 2;) {
			int64_t left = clients.deadline[i] - now;

			if (left <= 0)
				drop(&clients, i);
			else if (wait < 0 || left < wait)
				wait = left;
		}
		clients.fds[1].events = !rest && clients.count < 2 + CLIENTS ? POLLIN : 0;
		if (poll(clients.fds, clients.count, wait > INT32_MAX ? INT32_MAX : (int)wait) < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		rest = 0;
		if (clients.fds[0].revents)
			return 0;
		if (clients.fds[1].revents & ~POLLIN)
			return -EIO;
		for (unsigned int i = clients.count; i-- > 2;) {
			if (clients.fds[i].revents) {
				exchange(endpoint, server, clients.fds[i].fd);
				drop(&clients, i);
			}
		}
		if (clients.fds[1].revents)
			rest = admit(server, &clients, endpoint->listener);
	}
}
