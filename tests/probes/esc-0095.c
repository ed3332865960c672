/* Kernel keyrings. */
#include "probe.h"
#include <linux/keyctl.h>
#include <sys/syscall.h>

int main(void)
{
	probe_report("keyctl", syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1));
	probe_report("request_key", syscall(SYS_request_key, "user", "canary", NULL, 0));
	probe_report("add_key", syscall(SYS_add_key, "user", "probe", "x", 1, KEY_SPEC_PROCESS_KEYRING));
	return probe_exit();
}
