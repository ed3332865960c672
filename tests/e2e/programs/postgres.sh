set -e
@BIN@/initdb -D db -U me --auth=trust >/dev/null
@BIN@/pg_ctl -D db -w -o "-k /tmp -h 127.0.0.1 -p 55432" -l log start >/dev/null
trap '@BIN@/pg_ctl -D db -m fast stop >/dev/null' EXIT
@BIN@/psql -h /tmp -p 55432 -U me -d postgres -qAtc 'create table t as select generate_series(1,100) x; checkpoint'
@BIN@/psql -h 127.0.0.1 -p 55432 -U me -d postgres -qAtc "select 'sum=' || sum(x) from t"
@BIN@/pg_dump -h /tmp -p 55432 -U me postgres | grep -c COPY
@BIN@/vacuumdb -h /tmp -p 55432 -U me -q postgres
