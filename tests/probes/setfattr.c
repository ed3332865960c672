/* `setfattr -n NAME -v VALUE FILE` for machines without the package. */
#include "probe.h"
#include <sys/xattr.h>

int main(int argc, char **argv)
{
	if (argc < 6)
		return 2;
	probe_report("setfattr", setxattr(argv[5], argv[2], argv[4], strlen(argv[4]), 0));
	return probe_exit();
}
