/* Give an anonymous file a name outside. argv: outside-name */
#include "probe.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	char link[64];
	if (argc < 2)
		return 2;
	int fd = open(".", O_TMPFILE | O_WRONLY, 0600);
	printf("tmpfile %s\n", fd >= 0 ? "opened" : probe_errno(errno));
	if (fd >= 0 && write(fd, "x", 1) != 1)
		perror("write");
	probe_report("linkat-empty", linkat(fd, "", AT_FDCWD, argv[1], AT_EMPTY_PATH));
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	probe_report("linkat-proc", linkat(AT_FDCWD, link, AT_FDCWD, argv[1], AT_SYMLINK_FOLLOW));
	return probe_exit();
}
