/* Change inode flags by ioctl on a descriptor opened for reading. argv: file */
#include "probe.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	long flags = 0;
	struct fsxattr attributes;
	if (argc < 2)
		return 2;
	int fd = open(argv[1], O_RDONLY);
	if (fd < 0) {
		printf("open %s\n", probe_errno(errno));
		return 1;
	}
	ioctl(fd, FS_IOC_GETFLAGS, &flags);
	long immutable = flags | FS_IMMUTABLE_FL, no_dump = flags | FS_NODUMP_FL;
	probe_report("immutable", ioctl(fd, FS_IOC_SETFLAGS, &immutable));
	probe_report("no-dump", ioctl(fd, FS_IOC_SETFLAGS, &no_dump));
	/* The same request with bits above the 32 the kernel looks at. */
	probe_report("high-bits", ioctl(fd, FS_IOC_SETFLAGS | (1UL << 40), &no_dump));
	memset(&attributes, 0, sizeof attributes);
	ioctl(fd, FS_IOC_FSGETXATTR, &attributes);
	attributes.fsx_xflags |= FS_XFLAG_NOATIME;
	probe_report("fssetxattr", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	return probe_exit();
}
