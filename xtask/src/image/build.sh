# Makes the base image of sandboxes with mmdebstrap(1), a tar archive, and prints its digest. Arguments: the
# directory of the lists, the Debian release, and those of `cargo xtask image`.
lists=$1 suite=$2
shift 2
variant=minbase packages=$lists/packages more=
if [ "${1-}" = --small ]; then
    # The image for tests. It is made in seconds, because no package is set up.
    variant=extract packages=$lists/small_packages
    shift
fi
if [ $# = 3 ] && [ "$1" = --with ]; then
    more=,$2
    shift 2
fi
if [ $# != 1 ]; then
    echo "usage: cargo xtask image [--small] [--with PACKAGE,...] FILE.tar" >&2
    exit 1
fi
image=$1
if [ "$variant" = extract ]; then
    # Does the parts of the set-up that tests need: users, and programs of these names.
    set -- \
        '--extract-hook=ln --symbolic --force bash "$1/bin/sh"' \
        '--extract-hook=[ ! -e "$1/usr/bin/gcc" ] || ln --symbolic --force gcc "$1/usr/bin/cc"' \
        "--extract-hook=printf 'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\n' >\"\$1/etc/passwd\"" \
        "--extract-hook=printf 'root:x:0:\nagent:x:1000:\n' >\"\$1/etc/group\"" \
        '--extract-hook=install --directory --owner=1000 --group=1000 "$1/workspace" "$1/home/agent" && mkdir --parents "$1/run"'
else
    # Packages of Java cannot be set up without a directory for their pages. The last two make the user of
    # commands, and the mount point of the workspace.
    set -- \
        '--essential-hook=install --directory "$1/usr/share/man/man1"' \
        '--customize-hook=chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash agent' \
        '--customize-hook=install --directory --owner=1000 --group=1000 "$1/workspace"'
fi
command -v mmdebstrap >/dev/null || { echo "cannot start mmdebstrap: apt install mmdebstrap" >&2 && exit 1; }
unset TMPDIR
# Newest modification time, so that the image does not depend on the day of its build (2025-01-01). The excluded
# paths are those that no program reads inside.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1735689600}"
mmdebstrap "--variant=$variant" --format=tar "--include=$(paste -sd, "$packages")$more" \
    "--dpkgopt=path-exclude=/usr/share/doc/*" "--dpkgopt=path-exclude=/usr/share/man/*" \
    "--dpkgopt=path-exclude=/usr/share/locale/*" "$@" "$suite" "$image"
echo "sha256:$(sha256sum "$image" | cut -d' ' -f1)"
