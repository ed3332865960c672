/* A library that says which program loaded it. */
#include "probe.h"

__attribute__((constructor)) static void loaded(void)
{
	fprintf(stderr, "PRELOADED %s\n", program_invocation_short_name);
}
