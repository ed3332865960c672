/* Push keystrokes with bits set above those the kernel looks at. */
#include "probe.h"
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>

int main(void)
{
	const char *text = "echo canary\n";
	for (const char *c = text; *c; c++)
		probe_report("sti-high", syscall(SYS_ioctl, 0, TIOCSTI | (1UL << 32), c));
	return probe_exit();
}
