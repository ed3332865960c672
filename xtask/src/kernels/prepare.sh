# Makes what machines start from. Arguments: the directory for it, the first process of a machine, the
# root of the sources, and the name and Debian release of each kernel. The directory contains `load`, the
# tree of the second disk. Afterwards it also contains load.ext4 and, for each kernel, vmlinuz-NAME,
# start-NAME.cpio (the archive that finds the first disk) and system-NAME.ext4 (the first disk).
#
# The system tree and the unpacked kernels are kept from run to run.
cd "$1"
guest=$2 sources=$3
shift 3
PATH=$PATH:/usr/sbin:/sbin
release=bookworm
# For the suites and their probes, besides a minimal system.
packages=attr,curl,dbus,dbus-user-session,gcc,git,gpg-agent,iproute2,kmod,libc6-dev,libpam-systemd,openssh-client,procps,python3,strace,systemd,util-linux,x11-utils
# Modules of the disk's driver, in the order in which they need each other. A kernel may contain some of them.
driver="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk"

# quiet COMMAND: its output is shown only if it fails.
quiet() { "$@" >output 2>&1 || { cat output >&2; echo "failed: $*" >&2; exit 1; }; }

fail() {
    echo "$1" >&2
    exit 1
}

missing=
for need in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap cpio:cpio busybox:busybox-static \
    mke2fs:e2fsprogs depmod:kmod xz:xz-utils; do
    command -v "${need%:*}" >/dev/null || missing="$missing ${need#*:}"
done
if [ -n "$missing" ]; then
    echo "installing$missing" >&2
    quiet apt-get update -q
    # shellcheck disable=SC2086 # names of packages
    quiet apt-get install -q -y --no-install-recommends $missing
fi

# The distribution's archive, as this system's own sources name it.
archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep -v '^#' | tr -s '[:space:]' '\n' | grep '://' | grep -v security | head -n 1)
[ -n "$archive" ] || fail "no archive is listed in /etc/apt/sources.list or sources.list.d"

make_disk() { # TREE DISK SIZE
    rm -f "$2"
    quiet mke2fs -q -t ext4 -d "$1" "$2" "$3"
}

if [ "$(cat system.made 2>/dev/null)" != "$release $packages" ]; then
    echo "making a system from packages" >&2
    rm -rf system
    quiet debootstrap --variant=minbase "--include=$packages" "$release" system "$archive"
    quiet chroot system useradd --create-home --shell /bin/bash stockade-test
    rm -rf system/var/cache/apt system/var/lib/apt/lists system/usr/share/doc system/usr/share/locale
    echo "$release $packages" >system.made
fi
printf %s "$guest" >system/guest
chmod 755 system/guest

# For the service manager: the checks, and the user's own manager.
units=system/etc/systemd/system
mkdir -p "$units/multi-user.target.wants" system/var/lib/systemd/linger
: >system/var/lib/systemd/linger/stockade-test
cat >"$units/checks.service" <<'END'
[Unit]
After=systemd-user-sessions.service
[Service]
ExecStart=/guest
TimeoutStartSec=infinity
LimitNOFILE=65536
END
ln -sfn /etc/systemd/system/checks.service "$units/multi-user.target.wants/checks.service"
ln -sfn /lib/systemd/system/multi-user.target "$units/default.target"

# with_apt PROGRAM ARGUMENT...: a program of apt with sources and a cache of its own, in the directory $apt.
with_apt() {
    program=$1
    shift
    # The directory belongs to root.
    "$program" -o "Dir::Etc::sourcelist=$apt/release.list" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Sandbox::User=root "$@"
}

fetch_kernel() { # NAME RELEASE
    echo "fetching kernel $1" >&2
    apt=$PWD/apt-$2
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$key] $archive $2 main" >"$apt/release.list"
    quiet with_apt apt-get update -q
    version=$(with_apt apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: linux-image-//p' | head -n 1)
    case $version in "$1"*) ;; *) fail "release $2 has no kernel $1; it has: $version" ;; esac
    (cd "$apt" && quiet with_apt apt-get download "linux-image-$version")
    rm -rf "kernel-$1.part"
    quiet dpkg-deb -x "$apt"/*.deb "kernel-$1.part"
    mv "kernel-$1.part" "kernel-$1"
}

make_start_archive() { # TREE MODULES
    rm -rf "$1"
    mkdir -p "$1/bin" "$1/dev" "$1/modules" "$1/system"
    cp "$(command -v busybox)" "$1/bin/busybox"
    : >"$1/modules/order"
    for name in $driver; do
        found=$(find "$2" -name "$name.ko*" | head -n 1)
        case $found in
        "") continue ;;
        *.xz) xz -dc "$found" >"$1/modules/$name.ko" ;;
        *) cp "$found" "$1/modules/$name.ko" ;;
        esac
        echo "$name.ko" >>"$1/modules/order"
    done
    cat >"$1/init" <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t ext4 /dev/vda /system || exec /bin/busybox poweroff -f
/bin/busybox mount --move /dev /system/dev
exec /bin/busybox switch_root /system ${first:-/guest}
END
    chmod 755 "$1/init"
    (cd "$1" && find . | cpio --quiet -o -H newc) >"$1.cpio"
}

while [ $# -gt 0 ]; do
    [ -e "kernel-$1" ] || fetch_kernel "$1" "$2"
    modules=$(find "kernel-$1/usr/lib/modules" "kernel-$1/lib/modules" -mindepth 1 -maxdepth 1 2>/dev/null | head -n 1)
    version=${modules##*/}
    [ -e "kernel-$1/boot/vmlinuz-$version" ] || fail "the package of kernel $1 has no kernel or no modules"
    ln -sfn "kernel-$1/boot/vmlinuz-$version" "vmlinuz-$1"
    if [ ! -e "system/usr/lib/modules/$version" ]; then
        mkdir -p system/usr/lib/modules
        cp -a "$modules" "system/usr/lib/modules/$version"
        quiet depmod -b system/usr "$version"
    fi
    make_disk system "system-$1.ext4" 4G
    make_start_archive "start-$1" "$modules"
    shift 2
done

# The suites look at the sources.
mkdir -p load/sources
(cd "$sources" && git ls-files -z tests crates | tar -c --null -T -) | tar -x -C load/sources
make_disk load load.ext4 2G
