/* System calls by their x32 numbers. */
#include "probe.h"
#include <sys/socket.h>
#include <sys/syscall.h>

#define X32 0x40000000

int main(void)
{
	probe_report("x32-ptrace", syscall(X32 | 521, 0, 0, 0, 0));
	probe_report("x32-ptrace-plain", syscall(X32 | SYS_ptrace, 0, 0, 0, 0));
	probe_report("x32-socket", syscall(X32 | SYS_socket, AF_INET, SOCK_STREAM, 0));
	probe_report("x32-getpid", syscall(X32 | SYS_getpid));
	return probe_exit();
}
