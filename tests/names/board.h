/* What several processes of several runs share: a file of the workspace that all map. */
#ifndef BOARD_H
#define BOARD_H
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK "STOCKADE-PLANTED"

struct board {
	/* System calls: all, those that were refused, those that did it. */
	_Atomic uint64_t tried, refused, done;
	/* For races: what everybody does now, and how often one thought to have won. */
	_Atomic uint32_t state, wins;
	/* For trees: how many processes have come to each. */
	_Atomic uint32_t arrived[];
};

static struct board *board;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_board(const char *path)
{
	int fd = open(path, O_RDWR);
	struct stat found;

	if (fd < 0 || fstat(fd, &found))
		die(path);
	board = mmap(NULL, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (board == MAP_FAILED)
		die(path);
	close(fd);
}

/* Counts a call's result, and gives it back. */
static long counted(long result)
{
	board->tried++;
	if (result >= 0)
		board->done++;
	else if (errno == EACCES || errno == EPERM)
		board->refused++;
	return result;
}
#endif
