/* Open the root of the filesystem by its handle. argv: directory */
#include "probe.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + 128];
	} u;
	int mount_id, fd;
	const char *directory = argc > 1 ? argv[1] : ".";

	memset(&u, 0, sizeof u);
	u.handle.handle_bytes = 128;
	int got = name_to_handle_at(AT_FDCWD, directory, &u.handle, &mount_id, 0);
	printf("name_to_handle_at %s\n", got == 0 ? "worked" : probe_errno(errno));
	if (got != 0) {
		/* The layout ext4 and most others use: inode and generation. */
		u.handle.handle_bytes = 8;
		u.handle.handle_type = 1;
	}
	fd = open(directory, O_RDONLY | O_DIRECTORY);
	probe_report("open_by_handle_same", open_by_handle_at(fd, &u.handle, O_RDONLY));
	((unsigned *)u.handle.f_handle)[0] = 2;
	((unsigned *)u.handle.f_handle)[1] = 0;
	probe_report("open_by_handle_root", open_by_handle_at(fd, &u.handle, O_RDONLY));
	return probe_exit();
}
