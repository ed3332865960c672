/* Steal the controlling terminal. */
#include "probe.h"
#include <sys/ioctl.h>
#include <sys/wait.h>

int main(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		printf("setsid %s\n", setsid() >= 0 ? "done" : probe_errno(errno));
		probe_report("steal", ioctl(0, TIOCSCTTY, 1));
		_exit(probe_exit());
	}
	int status = 0;
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
