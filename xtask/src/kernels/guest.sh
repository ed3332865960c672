#!/bin/bash
# First process of a machine, or a service of its manager: runs the checks of the
# second disk one after the other, reports on the second serial port, and turns the
# machine off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
list=checks-managed
if [ $$ = 1 ]; then
    list=checks
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t securityfs securityfs /sys/kernel/security
    mkdir -p /dev/pts /dev/shm
    mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
    # Not /tmp: before 6.6 files in memory have no attributes of users.
    for place in /dev/shm /run; do mount -t tmpfs tmpfs $place; done
    chmod 1777 /dev/shm /tmp
    for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "${link#*:}" "/dev/${link%%:*}"; done
fi
ip link set lo up
modprobe overlay
ulimit -n 65536

mkdir /run/load
mount -o ro /dev/vdb /run/load
root=$(cat /run/load/root)
mkdir -p "$root"
mount --bind /run/load/sources "$root"
chmod 755 /run
export STOCKADE_BIN=/run/load/stockade SUITES=/run/load/suites STOCKADE_TEST_SLOWNESS=10 STOCKADE_ALL=1
as_user() { setpriv --reuid stockade-test --regid stockade-test --init-groups env HOME=/home/stockade-test bash -c "$1"; }
# as_managed_user SCRIPT: waits for the user's own service manager, and runs a script beside it.
as_managed_user() {
    as_user 'export XDG_RUNTIME_DIR=/run/user/$(id -u); for _ in $(seq 600); do [ -S $XDG_RUNTIME_DIR/bus ] && [ -S $XDG_RUNTIME_DIR/systemd/private ] && break; sleep 0.2; done; mkdir -p ~/w; cd ~/w; set -ex; '"$1"
}
export -f as_user as_managed_user

exec 9>/dev/ttyS1
while IFS=$'\t' read -r name command; do
    echo "begin $name" >&9
    (cd "$root" && timeout --kill-after=5 7200 bash -c "$command") </dev/null 2>&1 | sed -u 's/^/say /' >&9
    echo "end ${PIPESTATUS[0]}" >&9
done </run/load/$list
sync
echo o >/proc/sysrq-trigger
sleep 60
