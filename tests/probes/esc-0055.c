/* Create a file through io_uring. argv: outside-name */
#include "probe.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static char *submit_ring, *complete_ring;
static struct io_uring_sqe *entries;
static struct io_uring_params params;
static int ring;

static int call(struct io_uring_sqe *wanted)
{
	unsigned *tail = (unsigned *)(submit_ring + params.sq_off.tail);
	unsigned mask = *(unsigned *)(submit_ring + params.sq_off.ring_mask);
	unsigned *array = (unsigned *)(submit_ring + params.sq_off.array);
	unsigned *head = (unsigned *)(complete_ring + params.cq_off.head);
	unsigned completion_mask = *(unsigned *)(complete_ring + params.cq_off.ring_mask);
	struct io_uring_cqe *completions = (struct io_uring_cqe *)(complete_ring + params.cq_off.cqes);
	unsigned slot = *tail & mask;

	entries[slot] = *wanted;
	array[slot] = slot;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		return -errno;
	int result = completions[*head & completion_mask].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	ring = syscall(SYS_io_uring_setup, 4, &params);
	if (!probe_report("io_uring_setup", ring))
		return probe_exit();
	submit_ring = mmap(0, params.sq_off.array + params.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	complete_ring = mmap(0, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
			     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
	entries = mmap(0, params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	if (submit_ring == MAP_FAILED || complete_ring == MAP_FAILED || entries == MAP_FAILED)
		return 2;

	struct io_uring_sqe open_file = { .opcode = IORING_OP_OPENAT, .fd = AT_FDCWD };
	open_file.addr = (unsigned long)argv[1];
	open_file.open_flags = O_WRONLY | O_CREAT;
	open_file.len = 0600;
	int fd = call(&open_file);
	errno = -fd;
	if (probe_report("ring-open", fd)) {
		struct io_uring_sqe write_file = { .opcode = IORING_OP_WRITE, .fd = fd };
		write_file.addr = (unsigned long)"x";
		write_file.len = 1;
		int written = call(&write_file);
		errno = -written;
		probe_report("ring-write", written);
	}
	return probe_exit();
}
