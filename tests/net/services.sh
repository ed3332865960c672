#!/bin/sh
# Starts one real service behind the wire; `servers.py` relays to it.
#
#   services.sh ssh|redis|postgres PLACE SHARED
set -eu
service=$1 place=$2 shared=$3
directory=$place/$service
mkdir "$directory"
far() { nsenter --net=/run/netns/far "$@"; }

# Waits until something listens on the port, behind the wire.
await() {
    tries=0
    until far ss -Hltn "sport = :$1" | grep -q .; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || { cat "$directory"/*.log; exit 1; }
        sleep 0.05
    done
}

case $service in
ssh)
    mkdir -p /run/sshd
    cat >"$directory/config" <<END
HostKey $shared/host.key
AuthorizedKeysFile $shared/user.key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
ListenAddress 127.0.0.1:10022
END
    far "$(command -v sshd)" -D -E "$directory/sshd.log" -f "$directory/config" </dev/null >/dev/null 2>&1 &
    await 10022
    ;;
redis)
    far redis-server --port 16379 --bind 127.0.0.1 --save '' --appendonly no --dir "$directory" \
        </dev/null >"$directory/redis.log" 2>&1 &
    await 16379
    ;;
postgres)
    # PostgreSQL refuses to run as root.
    bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
    chown stockade-test "$directory"
    as() { setpriv --reuid stockade-test --regid stockade-test --clear-groups "$@"; }
    as "$bin/initdb" --auth trust --no-sync -D "$directory/data" >"$directory/initdb.log" 2>&1
    far setpriv --reuid stockade-test --regid stockade-test --clear-groups "$bin/postgres" -D "$directory/data" \
        -c port=15432 -c listen_addresses=127.0.0.1 -c "unix_socket_directories=$directory" -c fsync=off \
        </dev/null >"$directory/postgres.log" 2>&1 &
    await 15432
    ;;
esac
