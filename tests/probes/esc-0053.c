/* The new mount interface. */
#include "probe.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>

struct attributes {
	uint64_t set, clear, propagation, userns_fd;
};

int main(void)
{
	struct attributes attributes = { 0, 1 /* MOUNT_ATTR_RDONLY */, 0, 0 };
	long tree, fs;

	fs = syscall(428 + 2, "tmpfs", 0); /* fsopen */
	probe_report("fsopen", fs);
	probe_report("fsconfig", syscall(431, (int)fs, 6, NULL, NULL, 0));
	probe_report("fsmount", syscall(432, (int)fs, 0, 0));
	probe_report("fspick", syscall(433, AT_FDCWD, "/", 0));
	tree = syscall(428, AT_FDCWD, "/", 1 | O_CLOEXEC); /* open_tree, OPEN_TREE_CLONE */
	probe_report("open_tree", tree);
	probe_report("move_mount", syscall(429, (int)tree, "", AT_FDCWD, "/mnt", 4));
	probe_report("mount_setattr", syscall(442, AT_FDCWD, "/usr", 0, &attributes, sizeof attributes));
	probe_report("open_tree_attr",
		     syscall(467, AT_FDCWD, "/", 1 | O_CLOEXEC, &attributes, sizeof attributes));
	return probe_exit();
}
