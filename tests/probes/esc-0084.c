/* Signal a process of the host through the owner of a descriptor. argv: pid */
#include "probe.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	int pair[2];
	if (argc < 2)
		return 2;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
		return 2;
	probe_report("setown", fcntl(pair[0], F_SETOWN, atoi(argv[1])));
	probe_report("setsig", fcntl(pair[0], F_SETSIG, SIGKILL));
	fcntl(pair[0], F_SETFL, fcntl(pair[0], F_GETFL) | O_ASYNC);
	if (write(pair[1], "x", 1) != 1)
		return 2;
	usleep(200000);
	return probe_exit();
}
