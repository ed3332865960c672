/* Reconnect one end of a datagram pair to a host socket. argv: path */
#include "probe.h"
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv)
{
	int pair[2];
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	if (argc < 2)
		return 2;
	strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
	if (!probe_report("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)))
		return 1;
	probe_report("connect", connect(pair[0], (struct sockaddr *)&address, sizeof address));
	probe_report("send", send(pair[0], "x", 1, 0));
	probe_report("sendto", sendto(pair[1], "y", 1, 0, (struct sockaddr *)&address, sizeof address));
	struct iovec part = { "z", 1 };
	struct msghdr message = { .msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &part, .msg_iovlen = 1 };
	probe_report("sendmsg", sendmsg(pair[1], &message, 0));
	return probe_exit();
}
