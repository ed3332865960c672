/* What every probe shares: one line for each attempt, `NAME OK` or `NAME ERRNO`.
 * The exit code is 0 where at least one attempt succeeded. */
#ifndef PROBE_H
#define PROBE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int probe_successes;

static inline const char *probe_errno(int number)
{
	const char *name = strerrorname_np(number);
	return name ? name : "E?";
}

/* `result` is what a system call wrapper returned: below 0 is failure. */
static inline int probe_report(const char *name, long result)
{
	int number = errno;
	if (result >= 0) {
		printf("%s OK\n", name);
		probe_successes++;
	} else {
		printf("%s %s\n", name, probe_errno(number));
	}
	fflush(stdout);
	return result >= 0;
}

static inline int probe_exit(void)
{
	return probe_successes > 0 ? 0 : 1;
}
#endif
