/* Dangerous system calls with arguments that no kernel accepts: EPERM and
 * ENOSYS say that the call never reached its code. */
#include "probe.h"
#include <sys/syscall.h>

#define BAD ((void *)-4096L)
#define CALL(name, ...) probe_report(#name, syscall(SYS_##name, __VA_ARGS__))

int main(void)
{
	CALL(bpf, 0, BAD, 64);
	CALL(perf_event_open, BAD, 0, -1, -1, 0);
	CALL(userfaultfd, -1);
	CALL(kexec_load, 0, 99999, BAD, -1);
	CALL(init_module, BAD, 1, BAD);
	CALL(finit_module, -1, BAD, -1);
	CALL(delete_module, BAD, 0);
#ifdef SYS_iopl
	CALL(iopl, 99);
	CALL(ioperm, 1UL << 40, 1, 1);
#endif
	CALL(swapon, BAD, 0);
	CALL(swapoff, BAD);
	CALL(reboot, 1, 2, 3, BAD);
	CALL(settimeofday, BAD, BAD);
	CALL(clock_settime, 9999, BAD);
	CALL(sethostname, BAD, -1);
	CALL(setdomainname, BAD, -1);
	CALL(acct, BAD);
	CALL(quotactl, -1, BAD, 0, BAD);
	CALL(syslog, 99, BAD, -1);
	CALL(lookup_dcookie, 0, BAD, 0);
	CALL(kcmp, -1, -1, 99, 0, 0);
	CALL(move_pages, 0, 1, BAD, BAD, BAD, 99);
	CALL(mbind, BAD, 1, 99, BAD, 0, 0);
	return probe_exit();
}
