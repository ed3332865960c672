/* Unusual socket families. */
#include "probe.h"
#include <linux/netlink.h>
#include <sys/socket.h>

static const struct {
	const char *name;
	int family, type, protocol;
} kinds[] = {
	{ "packet", AF_PACKET, SOCK_RAW, 0 },
	{ "packet-dgram", AF_PACKET, SOCK_DGRAM, 0 },
	{ "netlink-route", AF_NETLINK, SOCK_RAW, NETLINK_ROUTE },
	{ "netlink-audit", AF_NETLINK, SOCK_RAW, NETLINK_AUDIT },
	{ "netlink-netfilter", AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER },
	{ "netlink-uevent", AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT },
	{ "netlink-generic", AF_NETLINK, SOCK_RAW, NETLINK_GENERIC },
	{ "vsock", 40, SOCK_STREAM, 0 },
	{ "alg", 38, SOCK_SEQPACKET, 0 },
	{ "key", 15, SOCK_RAW, 2 },
	{ "bluetooth", 31, SOCK_RAW, 1 },
	{ "can", 29, SOCK_RAW, 1 },
	{ "tipc", 30, SOCK_SEQPACKET, 0 },
	{ "rds", 21, SOCK_SEQPACKET, 0 },
	{ "xdp", 44, SOCK_RAW, 0 },
	{ "qipcrtr", 42, SOCK_DGRAM, 0 },
	{ "raw-inet", AF_INET, SOCK_RAW, 1 },
	{ "raw-inet6", AF_INET6, SOCK_RAW, 58 },
	{ "unix-dgram", AF_UNIX, SOCK_DGRAM, 0 },
};

int main(void)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		probe_report(kinds[i].name, socket(kinds[i].family, kinds[i].type, kinds[i].protocol));
	return probe_exit();
}
