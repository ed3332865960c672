/* Connects again and again while another thread writes another address into the
 * memory that is read: race GOOD BAD PORT. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTS = 200, NAPS_MAX = 10000, NAP_US = 100 };

static struct sockaddr_in address;
static struct in_addr good, bad;
static atomic_int running = 1;
static atomic_long rounds;

/* Both stand there for as long, so that either is met at any moment. */
static void put(struct in_addr shown)
{
	*(volatile in_addr_t *)&address.sin_addr.s_addr = shown.s_addr;
	for (volatile int n = 0; n < 50; n++)
		;
}

static void *swap(void *unused)
{
	while (running) {
		put(bad);
		put(good);
		rounds++;
	}
	return unused;
}

/* Each connect meets another moment, on a busy machine too. */
static void wait_for_a_round(void)
{
	long seen = rounds;

	for (int n = 0; n < NAPS_MAX && rounds == seen; n++)
		usleep(NAP_US);
}

int main(int count, char **arguments)
{
	pthread_t other;
	int connected = 0;

	if (count != 4 || !inet_aton(arguments[1], &good) || !inet_aton(arguments[2], &bad))
		return 2;
	address.sin_family = AF_INET;
	address.sin_port = htons(atoi(arguments[3]));
	address.sin_addr = good;
	if (pthread_create(&other, NULL, swap, NULL))
		return 3;
	for (int n = 0; n < CONNECTS; n++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		wait_for_a_round();
		connected += connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
		close(fd);
	}
	running = 0;
	pthread_join(other, NULL);
	printf("connected %d times\n", connected);
	return 0;
}
