/* Paste by the console's ioctl. */
#include "probe.h"
#include <sys/ioctl.h>
#include <termios.h>

int main(void)
{
	char paste = 3;
	for (int fd = 0; fd < 3; fd++) {
		char name[32];
		snprintf(name, sizeof name, "linux %d %s", fd, isatty(fd) ? "tty" : "other");
		probe_report(name, ioctl(fd, TIOCLINUX, &paste));
	}
	return probe_exit();
}
