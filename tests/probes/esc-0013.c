/* Exchange a file of the workspace and one outside. argv: inside outside */
#include "probe.h"
#include <fcntl.h>
#include <sys/syscall.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	probe_report("renameat2",
		     syscall(SYS_renameat2, AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE));
	return probe_exit();
}
