# Runs with the root directory of a fresh system, in which the artifacts are in /tmp. The argument
# is the artifact to try.

# say COMMAND [ARGUMENT ...]: shows a command, and runs it.
say() {
    printf '$ %s\n' "$*"
    "$@"
}

# Lists every file of the system, except for temporary files, homes, and records of dpkg itself.
list_files() {
    find / -xdev \( -path /var/lib/dpkg/status-old -o -path /var/lib/dpkg/triggers -o -path /var/log/dpkg.log \) -prune \
        -o -printf '%y %m %U:%G %p %l\n' | sort
}

# unchanged WHAT: fails if the files of the system are others than in /tmp/before.
unchanged() {
    list_files >/tmp/after
    diff /tmp/before /tmp/after || { echo "$1 has changed files of the system"; exit 1; }
    echo "$1 has left no file"
}

as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/home/user "$@"; }

# says_hello COMMAND [ARGUMENT ...]: shows a command that must print hello, and runs it.
says_hello() {
    output=$(say "$@")
    echo "$output"
    [ "$(echo "$output" | tail -n 1)" = hello ]
}

# first_commands PROGRAM: the first commands of root and of an ordinary user.
first_commands() {
    say "$1" --version
    mkdir -p /root/project /home/user/project
    chown -R 1000:1000 /home/user
    cd /root/project
    says_hello "$1" run -- echo hello
    cd /home/user/project
    says_hello as_user "$1" run -- echo hello
    say as_user "$1" doctor
    cd /
}

# apparmor_case WHAT ABI CALLS [LATER_ABI]: installs and purges the package where AppArmor
# with this version of its interface is there, played by programs that note how they were called, and
# expects so many calls. With LATER_ABI, AppArmor is upgraded in between.
apparmor_case() {
    echo "-- $1"
    mkdir -p /etc/apparmor.d/abi
    touch "/etc/apparmor.d/abi/$2"
    for tool in aa-enabled apparmor_parser; do
        printf '#!/bin/sh\necho "%s $*" >>/tmp/apparmor-calls\n' $tool >/usr/local/sbin/$tool
        chmod 755 /usr/local/sbin/$tool
    done
    list_files >/tmp/before
    : >/tmp/apparmor-calls
    dpkg -i /tmp/stockade_*.deb >/dev/null
    ls /etc/apparmor.d/disable/stockade 2>/dev/null || true
    if [ -n "${4:-}" ]; then
        touch "/etc/apparmor.d/abi/$4"
        dpkg-trigger --no-await --by-package=stockade /etc/apparmor.d/abi
        dpkg --triggers-only stockade >/dev/null
        rm "/etc/apparmor.d/abi/$4"
    fi
    dpkg --purge stockade >/dev/null
    grep apparmor_parser /tmp/apparmor-calls || true
    [ "$(grep -c apparmor_parser /tmp/apparmor-calls)" = "$3" ]
    unchanged "the package, purged,"
    rm -r /etc/apparmor.d /usr/local/sbin/aa-enabled /usr/local/sbin/apparmor_parser
}

case $1 in
package)
    useradd --no-create-home --uid 1000 user
    list_files >/tmp/before
    say dpkg -i /tmp/stockade_*.deb
    say dpkg --verify stockade
    first_commands stockade
    [ -s /usr/share/man/man1/stockade-run.1.gz ] && [ -s /etc/apparmor.d/stockade ]
    bash -euc '. /usr/share/bash-completion/completions/stockade && complete -p stockade'
    say dpkg --purge stockade
    unchanged "the package, purged,"
    apparmor_case "where AppArmor 4 restricts user namespaces, the profile is loaded and unloaded" 4.0 2
    apparmor_case "where AppArmor 3 cannot parse the profile, it is disabled" 3.0 0
    apparmor_case "where AppArmor 3 becomes AppArmor 4, the profile is enabled and loaded" 3.0 2 4.0
    ;;
archive)
    useradd --no-create-home --uid 1000 user
    mkdir /tmp/archive
    tar -xzf /tmp/stockade-*-linux.tar.gz -C /tmp/archive --strip-components=1
    first_commands /tmp/archive/stockade
    ;;
esac
