/* Single system calls that no shell command makes: acts ACT ARGUMENT... */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { TEXT_MAX = 4096, WAIT_STEPS = 2000, WAIT_STEP_US = 10000 };

static char text[TEXT_MAX];
static size_t text_length;

static void read_text(void)
{
	ssize_t got;

	while (text_length < sizeof text && (got = read(0, text + text_length, sizeof text - text_length)) > 0)
		text_length += got;
}

static int write_text(int fd)
{
	return write(fd, text, text_length) == (ssize_t)text_length ? 0 : -1;
}

static void descriptor_path(char *path, size_t size, int fd)
{
	snprintf(path, size, "/proc/self/fd/%d", fd);
}

/* Makes an empty file FLAG.ready, then waits for FLAG. */
static int wait_for(const char *flag)
{
	char ready[TEXT_MAX];

	snprintf(ready, sizeof ready, "%s.ready", flag);
	close(open(ready, O_CREAT | O_WRONLY, 0644));
	for (int step = 0; step < WAIT_STEPS; step++) {
		if (access(flag, F_OK) == 0)
			return 0;
		usleep(WAIT_STEP_US);
	}
	return -1;
}

static int link_descriptor(int fd, const char *target)
{
	char path[64];

	descriptor_path(path, sizeof path, fd);
	return linkat(AT_FDCWD, path, AT_FDCWD, target, AT_SYMLINK_FOLLOW);
}

static int act(char **a)
{
	const char *name = a[1];
	int fd;

	if (!strcmp(name, "exchange"))
		return renameat2(AT_FDCWD, a[2], AT_FDCWD, a[3], RENAME_EXCHANGE);
	if (!strcmp(name, "bind")) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };

		snprintf(address.sun_path, sizeof address.sun_path, "%s", a[2]);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		return bind(fd, (struct sockaddr *)&address, sizeof address);
	}
	/* A file without a name gets one: tmplink DIRECTORY TARGET <text */
	if (!strcmp(name, "tmplink")) {
		read_text();
		fd = open(a[2], O_TMPFILE | O_RDWR, 0755);
		return fd < 0 || write_text(fd) || link_descriptor(fd, a[3]) ? -1 : 0;
	}
	/* An open file gets a second name: fdlink FILE TARGET */
	if (!strcmp(name, "fdlink")) {
		fd = open(a[2], O_RDONLY);
		return fd < 0 || link_descriptor(fd, a[3]) ? -1 : 0;
	}
	/* linkat(2) with an empty path: emptylink FILE TARGET */
	if (!strcmp(name, "emptylink")) {
		fd = open(a[2], O_RDONLY);
		return linkat(fd, "", AT_FDCWD, a[3], AT_EMPTY_PATH);
	}
	/* Writes beneath a directory that was renamed while it was open:
	 * late DIRECTORY NEW-NAME FILE <text */
	if (!strcmp(name, "late")) {
		int directory = open(a[2], O_RDONLY | O_DIRECTORY);

		read_text();
		if (rename(a[2], a[3]))
			perror("rename");
		fd = openat(directory, a[4], O_CREAT | O_WRONLY, 0755);
		return fd < 0 ? -1 : write_text(fd);
	}
	/* Writes to a file that was opened long before: hold FILE FLAG <text */
	if (!strcmp(name, "hold")) {
		read_text();
		fd = open(a[2], O_CREAT | O_WRONLY | O_APPEND, 0755);
		return fd < 0 || wait_for(a[3]) ? -1 : write_text(fd);
	}
	/* The same through a mapping: map FILE FLAG <text */
	if (!strcmp(name, "map")) {
		char *mapped;

		read_text();
		fd = open(a[2], O_CREAT | O_RDWR, 0755);
		if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, "\n", 1, TEXT_MAX - 1) != 1)
			return -1;
		mapped = mmap(NULL, TEXT_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (mapped == MAP_FAILED)
			return -1;
		memset(mapped, '\n', TEXT_MAX);
		close(fd);
		if (wait_for(a[3]))
			return -1;
		memcpy(mapped, text, text_length);
		return 0;
	}
	errno = EINVAL;
	return -1;
}

int main(int count, char **arguments)
{
	/* Every act finds as many arguments as it reads. */
	char *padded[8] = { 0 };

	for (int n = 0; n < 7; n++)
		padded[n] = n < count ? arguments[n] : "";
	if (act(padded)) {
		perror(padded[1]);
		return 1;
	}
	return 0;
}
