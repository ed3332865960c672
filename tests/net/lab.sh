#!/bin/sh
# Makes the lab around the calling process, which has mount, network and process
# namespaces of its own: this machine's side of a wire, and a network behind it
# where every address answers. Must not know what is tried.
#
#   lab.sh PLACE SHARED SYSROOT [SERVICE...] -- COMMAND...
set -eu
place=$1 shared=$2 sysroot=$3
shift 3
log=$place/log

# The Rust toolchain may lie where an ordinary user does not get.
mkdir "$place/toolchain"
mount --bind "$sysroot" "$place/toolchain"
# What lies in these belongs to the host.
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp

# Where the C library and systemd look for daemons that resolve names.
mkdir -p -m 1777 /run/nscd /run/systemd/resolve

# Puts a file of ours over one of the system.
over() {
    target=$(readlink -f "$2")
    if [ ! -e "$target" ]; then
        mkdir -p "$(dirname "$target")"
        : >"$target"
    fi
    mount --bind "$1" "$target"
}
printf 'nameserver 8.8.8.8\noptions timeout:2 attempts:1\n' >"$place/resolv.conf"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$place/hosts"
sed 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf >"$place/nsswitch.conf"
for file in resolv.conf hosts nsswitch.conf; do over "$place/$file" /etc/$file; done
over "$shared/ca.pem" /etc/ssl/certs/ca-certificates.crt

ip netns add far
far() { nsenter --net=/run/netns/far "$@"; }
ip link set lo up
ip link add near0 type veth peer name far0 netns far
ip address add 11.0.0.1/24 dev near0
ip address add 2a00:11::1/64 dev near0 nodad
ip link set near0 up
far ip link set lo up
far ip address add 11.0.0.2/24 dev far0
far ip address add 2a00:11::2/64 dev far0 nodad
far ip link set far0 up
far ip address add 8.8.8.8/32 dev lo
for block in 93.184.0.0/16 9.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 198.18.0.0/15 169.254.0.0/16; do
    far ip route add local $block dev lo
done
for block in 2606:4700::/32 fd00::/8 64:ff9b::/96; do
    far ip -6 route add local $block dev lo
done
ip route add default via 11.0.0.2
ip -6 route add default via 2a00:11::2

: >"$log"
here=$(dirname "$0")
far /usr/bin/python3 "$here/servers.py" far "$shared" "$log" </dev/null >"$place/far.err" 2>&1 &
/usr/bin/python3 "$here/servers.py" near "$shared" "$log" </dev/null >"$place/near.err" 2>&1 &
tries=0
while [ "$(grep -c '"ready"' "$log")" != 2 ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { cat "$place/far.err" "$place/near.err"; exit 1; }
    sleep 0.05
done
while [ "$1" != -- ]; do
    "$here/services.sh" "$1" "$place" "$shared"
    shift
done
shift
exec "$@"
