/* Installed set-uid root: says what that gives. */
#include "probe.h"

int main(void)
{
	printf("real %d effective %d\n", (int)getuid(), (int)geteuid());
	return 0;
}
