/* Run a static program from an anonymous memory file. argv: program outside-name */
#include "probe.h"
#include <fcntl.h>
#include <sys/mman.h>

extern char **environ;

int main(int argc, char **argv)
{
	char buffer[65536];
	ssize_t n;
	if (argc < 3)
		return 2;
	int from = open(argv[1], O_RDONLY);
	int to = memfd_create("probe", MFD_CLOEXEC);
	if (from < 0 || to < 0) {
		perror("set-up");
		return 2;
	}
	while ((n = read(from, buffer, sizeof buffer)) > 0)
		if (write(to, buffer, n) != n)
			return 2;
	char *arguments[] = { "inner", argv[2], NULL };
	fflush(stdout);
	fexecve(to, arguments, environ);
	printf("fexecve %s\n", probe_errno(errno));
	return 1;
}
