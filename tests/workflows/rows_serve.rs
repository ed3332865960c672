//! Servers with their clients, and databases, within one command.

use stockade_tests::Level;

use crate::way::Way;
use crate::workflow::Workflow;

pub const ALL: &[Workflow] = &[
    Workflow {
        id: "sqlite",
        needs: &["sqlite3"],
        work: "sqlite3 db 'pragma journal_mode=wal; create table t(a); insert into t values (1),(2)' >/dev/null; test $(sqlite3 db 'select sum(a) from t') = 3",
        after: "sqlite3 db 'pragma integrity_check' | grep ok",
        ..Workflow::NEW
    },
    Workflow {
        id: "python-server",
        needs: &["python3", "curl"],
        before: "echo page >index.html",
        // Rows at the same time, some of them on the host's loopback.
        work: "port=$((30000 + $$ % 10000)); /usr/bin/python3 -m http.server $port --bind 127.0.0.1 >/dev/null 2>&1 & \
            for i in $(seq 100); do curl -sf http://localhost:$port/ >got && break; sleep 0.05; done; kill $!",
        after: "grep page got",
        ..Workflow::NEW
    },
    Workflow {
        id: "node-server",
        needs: &["node", "curl"],
        before: "printf 'require(\"http\").createServer((q, a) => a.end(\"page\")).listen(process.env.PORT);\\n' >s.js",
        work: "export PORT=$((40000 + $$ % 10000)); node s.js & for i in $(seq 100); do curl -sf http://127.0.0.1:$PORT/ >got && break; sleep 0.05; done; kill $!",
        after: "grep page got",
        ..Workflow::NEW
    },
    Workflow {
        id: "unix-socket-server",
        needs: &["python3", "curl"],
        before: "printf 'import socketserver, http.server\\nclass S(socketserver.UnixStreamServer):\\n  def get_request(s): return s.socket.accept()[0], (\"x\", 0)\\n\
            class H(http.server.BaseHTTPRequestHandler):\\n  def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(b\"page\")\\n  def log_message(s, *a): pass\\n\
            S(\"sock\", H).serve_forever()\\n' >s.py",
        work: "/usr/bin/python3 s.py & for i in $(seq 100); do curl -sf --unix-socket sock http://x/ >got && break; sleep 0.05; done; kill $!",
        after: "grep page got",
        ..Workflow::NEW
    },
    Workflow {
        id: "postgresql",
        not_as_root: Some("PostgreSQL does not run as root"),
        needs: &["initdb", "postgres", "psql"],
        work: "initdb -D data --no-sync -U dev >/dev/null; postgres -D data -k $PWD -c listen_addresses= >log 2>&1 & \
            for i in $(seq 200); do psql -h $PWD -U dev postgres -tAc 'select 6*7' >got 2>/dev/null && break; sleep 0.05; done; kill -INT $!; wait $! || true",
        after: "grep 42 got",
        refused: &[
            (Way::Sandboxed(Level::Restricted), "its shared memory lies in /dev/shm, which is the host's there"),
            (
                Way::Docker,
                "it has shared memory of System V, which the isolation inside refuses as level restricted does",
            ),
        ],
        ..Workflow::NEW
    },
    Workflow {
        id: "redis",
        needs: &["redis-server", "redis-cli"],
        work: "redis-server --port 0 --unixsocket $PWD/r.sock --save '' >log & \
            for i in $(seq 100); do redis-cli -s r.sock ping >got 2>/dev/null && break; sleep 0.05; done; redis-cli -s r.sock set a b; kill $!",
        after: "grep PONG got",
        ..Workflow::NEW
    },
    Workflow {
        id: "secure-shell-keys",
        needs: &["ssh-keygen", "openssl"],
        work: "ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -lf key.pub; openssl rand -hex 16 >r; openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -subj /CN=x -days 1 2>/dev/null",
        after: "test -s key.pub; test -s c.pem",
        ..Workflow::NEW
    },
];
