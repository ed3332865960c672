# Tries the artifacts of `cargo xtask dist` in fresh systems. Arguments: the directory of the
# artifacts, the release of Debian, and the script that runs inside.
dist=$(realpath "$1") suite=$2 inside=$3
work=$(mktemp -d /var/tmp/stockade-dist.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT

# in_system ROOT PART: runs a part of the inner script with ROOT as its root directory. A chroot
# would not do, because the kernel refuses user namespaces in one (clone(2), EPERM).
in_system() {
    unshare --mount --pid --fork --kill-child=KILL sh -euc '
        mount --bind "$1" "$1"
        cd "$1"
        mount -t proc proc proc
        mount --rbind /sys sys
        mount --rbind /dev dev
        for directory in tmp home root; do mount -t tmpfs -o mode=1777 tmpfs $directory; done
        cp "$2"/stockade* tmp/
        mkdir tmp/old
        pivot_root . tmp/old
        umount --lazy /tmp/old
        rmdir /tmp/old
        exec env --ignore-environment PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LC_ALL=C /bin/sh -euc "$3" inside "$4"
    ' system "$1" "$dist" "$inside" "$2"
}

echo "== checksums"
(cd "$dist" && sha256sum --check --strict SHA256SUMS)

echo "== a program that needs nothing of its system"
mkdir "$work/empty" "$work/archive"
tar --extract --file "$dist"/stockade-*-linux.tar.gz --directory "$work/archive" --strip-components=1
cp "$work/archive/stockade" "$work/empty/"
chroot "$work/empty" /stockade --version

echo "== manual pages"
if command -v man >/dev/null; then
    for page in "$work"/archive/man/man1/*.1; do
        warnings=$(MANWIDTH=100 man --warnings --local-file "$page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || { echo "$page: $warnings"; exit 1; }
    done
    echo "$(ls "$work"/archive/man/man1 | wc -l) pages have no warning"
else
    echo "not run: there is no man(1)"
fi

echo "== completions"
for shell in bash zsh fish; do
    command -v $shell >/dev/null || { echo "not run: there is no $shell"; continue; }
    $shell -n "$work"/archive/completions/*stockade$(case $shell in bash) echo .bash ;; fish) echo .fish ;; esac)
    echo "$shell can read them"
done

echo "== AppArmor profile"
if command -v apparmor_parser >/dev/null && [ -e /etc/apparmor.d/abi/4.0 ]; then
    apparmor_parser --skip-kernel-load --skip-cache "$work/archive/apparmor/stockade"
    echo "apparmor_parser can read it"
else
    echo "not run: there is no AppArmor 4 here"
fi

echo "== a minimal system: Debian $suite"
command -v mmdebstrap >/dev/null || { echo "cannot make one: apt install mmdebstrap"; exit 1; }
mmdebstrap --quiet --variant=minbase --format=tar "$suite" "$work/system.tar"
for part in package archive; do
    echo "== the $part in a fresh system"
    mkdir "$work/$part-root"
    tar --extract --file "$work/system.tar" --directory "$work/$part-root"
    in_system "$work/$part-root" "$part"
    rm -rf --one-file-system "$work/$part-root"
done
echo "all trials passed"
