/* Watch the host's files. */
#include "probe.h"
#include <fcntl.h>
#include <sys/fanotify.h>

int main(void)
{
	int fd = fanotify_init(FAN_CLASS_NOTIF, 0);
	probe_report("fanotify_init", fd);
	probe_report("fanotify_mark", fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "/"));
	return probe_exit();
}
