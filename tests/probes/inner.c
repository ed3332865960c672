/* A static program that creates argv[1]. */
#include "probe.h"
#include <fcntl.h>

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	printf("inner runs\n");
	probe_report("inner-create", open(argv[1], O_WRONLY | O_CREAT, 0600));
	return probe_exit();
}
