# Packs a release: a tar archive, a Debian package, the bill of materials and checksums. Arguments: the tree of
# the archive, the directory of the package's control files, the directory for the artifacts, the version, and
# the modification time of every file in seconds since the epoch. The same content gives the same bytes.
tree=$1 debian=$2 output=$3 version=$4 epoch=$5
export LC_ALL=C SOURCE_DATE_EPOCH="$epoch"
name=${tree##*/}
package=$(dirname "$tree")/package
umask 022

case $(uname -m) in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) echo "there is no Debian package for $(uname -m)" >&2 && exit 1 ;;
esac

# Gives every file and directory of a tree a fixed mode and time. The programs are PROGRAM ...
normalize() { # TREE PROGRAM ...
    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f -exec chmod 644 {} +
    top=$1
    shift
    (cd "$top" && chmod 755 "$@")
    find "$top" -exec touch --date="@$epoch" {} +
}

# Writes a file without its name and time.
compress() { # FILE TARGET
    gzip -9n <"$1" >"$2"
}

normalize "$tree" stockade
archive=$name.tar.gz
tar --create --format=gnu --sort=name --owner=root:0 --group=root:0 "--use-compress-program=gzip -9n" \
    --file "$output/$archive" --directory "$(dirname "$tree")" "$name"

documents=$package/usr/share/doc/stockade
manual=$package/usr/share/man/man1
bash=$package/usr/share/bash-completion/completions
zsh=$package/usr/share/zsh/vendor-completions
fish=$package/usr/share/fish/vendor_completions.d
mkdir -p "$package/usr/bin" "$package/etc/apparmor.d" "$documents" "$manual" "$bash" "$zsh" "$fish"
cp "$tree/stockade" "$package/usr/bin/stockade"
cp "$tree/apparmor/stockade" "$package/etc/apparmor.d/stockade"
cp "$debian/copyright" "$tree/README.md" "$tree/sbom.cdx.json" "$documents"
date=$(date --utc --date="@$epoch" --rfc-email)
sed "s/@VERSION@/$version/g; s/@DATE@/$date/" "$debian/changelog" | gzip -9n >"$documents/changelog.gz"
compress "$tree/CHANGELOG.md" "$documents/NEWS.gz"
compress "$tree/third-party-licenses" "$documents/third-party-licenses.gz"
for page in "$tree"/man/man1/*; do compress "$page" "$manual/${page##*/}.gz"; done
cp "$tree/completions/stockade.bash" "$bash/stockade"
cp "$tree/completions/_stockade" "$zsh"
cp "$tree/completions/stockade.fish" "$fish"

# The size as deb-substvars(5) counts it: each file in started KiB.
size=$(find "$package" -type f -printf '%s\n' | awk '{ size += int(($1 + 1023) / 1024) } END { print size }')
# The sums that dpkg(1) verifies. Those of configuration files are its own.
sums=$(cd "$package" && find . -type f ! -path './etc/*' -printf '%P\n' | sort | xargs -d '\n' md5sum)
mkdir "$package/DEBIAN"
sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@INSTALLED_SIZE@/$size/" "$debian/control" \
    >"$package/DEBIAN/control"
echo "$sums" >"$package/DEBIAN/md5sums"
echo /etc/apparmor.d/stockade >"$package/DEBIAN/conffiles"
cp "$debian/triggers" "$debian/postinst" "$debian/prerm" "$debian/postrm" "$package/DEBIAN"
normalize "$package" usr/bin/stockade DEBIAN/postinst DEBIAN/prerm DEBIAN/postrm
deb=stockade_${version}_$architecture.deb
# The number of threads would change how the bytes are compressed.
DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$package" "$output/$deb" >/dev/null

sbom=$name.cdx.json
cp "$tree/sbom.cdx.json" "$output/$sbom"
cd "$output"
sha256sum "$archive" "$deb" "$sbom" >SHA256SUMS
for artifact in "$archive" "$deb" "$sbom" SHA256SUMS; do echo "$output/$artifact"; done
