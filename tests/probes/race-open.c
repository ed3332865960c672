/* Two threads: one opens names for writing, the other changes what the name
 * says while the call is being decided. argv: outside-directory seconds; up to
 * four times as long where a busy machine leaves it less than a hundred tries.
 *  - the bytes of the path flip between an inside and an outside name;
 *  - a link flips between an inside and an outside directory;
 *  - a directory and a link to outside are exchanged. */
#include "probe.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

static char path[4096], inside[4096], outside[4096];
static const char *out;
static volatile int stop;

static void *flip_bytes(void *unused)
{
	(void)unused;
	while (!stop) {
		memcpy(path, outside, sizeof path);
		memcpy(path, inside, sizeof path);
	}
	return NULL;
}

static void *flip_names(void *unused)
{
	(void)unused;
	while (!stop) {
		if (symlink(out, "flip.tmp") == 0)
			rename("flip.tmp", "flip");
		if (symlink("real", "flip.tmp") == 0)
			rename("flip.tmp", "flip");
		syscall(SYS_renameat2, AT_FDCWD, "swap", AT_FDCWD, "link", RENAME_EXCHANGE);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t bytes, names;
	unsigned long tries = 0;
	if (argc < 3)
		return 2;
	out = argv[1];
	snprintf(inside, sizeof inside, "%s", "real/p");
	snprintf(outside, sizeof outside, "%s/p", out);
	memcpy(path, inside, sizeof path);
	mkdir("real", 0700);
	mkdir("swap", 0700);
	if (symlink(out, "link") || symlink("real", "flip"))
		perror("set-up");
	pthread_create(&bytes, NULL, flip_bytes, NULL);
	pthread_create(&names, NULL, flip_names, NULL);
	time_t begun = time(NULL), seconds = atoi(argv[2]);
	while (time(NULL) < begun + (tries < 100 ? 4 : 1) * seconds) {
		const char *targets[] = { path, "flip/p", "swap/p" };
		for (int i = 0; i < 3; i++) {
			int fd = open(targets[i], O_WRONLY | O_CREAT | O_TRUNC, 0600);
			if (fd >= 0)
				close(fd);
			chmod(targets[i], 0640);
			truncate(targets[i], 3);
			unlink("real/p");
			unlink("swap/p");
			tries++;
		}
	}
	stop = 1;
	pthread_join(bytes, NULL);
	pthread_join(names, NULL);
	printf("tries %lu\n", tries);
	return 0;
}
