/* Runs a program on a kernel that lacks a system call.
 * argv: `landlock` or `seccomp`, program, arguments */
#include "probe.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(number, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, skip)
#define ANSWER(number) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (number))

int main(int argc, char **argv)
{
	struct sock_filter no_landlock[] = {
		LOAD(nr), IF(444, 1), ANSWER(ENOSYS), IF(445, 1), ANSWER(ENOSYS),
		IF(446, 1), ANSWER(ENOSYS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_filter no_seccomp[] = {
		LOAD(nr), IF(SYS_seccomp, 1), ANSWER(EINVAL), IF(SYS_prctl, 3), LOAD(args[0]),
		IF(PR_SET_SECCOMP, 1), ANSWER(EINVAL), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program;
	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "landlock") == 0)
		program = (struct sock_fprog){ sizeof no_landlock / sizeof no_landlock[0], no_landlock };
	else
		program = (struct sock_fprog){ sizeof no_seccomp / sizeof no_seccomp[0], no_seccomp };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("deny-call");
		return 2;
	}
	execvp(argv[2], argv + 2);
	perror("execvp");
	return 2;
}
