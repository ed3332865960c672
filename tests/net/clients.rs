//! Ordinary clients, none of them configured for a proxy but where that is what
//! is tried. Each works without the sandbox, works inside with exactly the
//! grants that it needs, and is refused exactly where one is missing.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use stockade_testkit::{ProgramEnd, TestUser};
use stockade_tests::Level;
use stockade_tests::cross_section::Turn;

use crate::lab::{Lab, Powers, Script, Seen};
use crate::task::{Task, control_task, strongest};

/// One client.
struct Client {
    name: &'static str,
    /// What it connects to, in its order.
    targets: &'static [&'static str],
    /// What it prints in the end.
    proof: &'static str,
    script: &'static str,
    /// Whether the proxy variables stay set inside.
    with_proxies: bool,
    service: Option<&'static str>,
    /// Why level `restricted` does not promise it.
    full_only: Option<&'static str>,
}

const CLIENT: Client =
    Client { name: "", targets: &[], proof: "", script: "", with_proxies: false, service: None, full_only: None };

const CLIENTS: &[Client] = &[
    Client {
        name: "curl",
        targets: &["curl.test:443"],
        proof: "content of curl.test",
        script: "curl -sS https://curl.test/",
        ..CLIENT
    },
    Client {
        name: "curl-v6",
        targets: &["six.test:443"],
        proof: "content of six.test",
        script: "curl -sS https://six.test/",
        full_only: Some("curl asks for IPv6 addresses where it can make a datagram socket for them, and there are none"),
        ..CLIENT
    },
    Client {
        name: "git-https",
        targets: &["git.test:443"],
        proof: "refs/heads/main",
        script: "git ls-remote https://git.test/demo.git",
        ..CLIENT
    },
    Client {
        name: "git-ssh",
        targets: &["ssh.test:22"],
        proof: "refs/heads/main",
        script: "install -m 600 $SHARED/user.key key
export GIT_SSH_COMMAND='ssh -F none -i key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'
git ls-remote ssh://root@ssh.test$SHARED/repositories/demo.git",
        service: Some("ssh"),
        ..CLIENT
    },
    Client {
        name: "pip",
        targets: &["pypi.org:443", "files.pythonhosted.org:443"],
        proof: "demo from the index",
        script: "/usr/bin/python3 $SHARED/pip.whl/pip install -q --no-cache-dir --root-user-action=ignore \
                 --disable-pip-version-check --target lib demo && PYTHONPATH=lib /usr/bin/python3 -c 'import demo; print(demo.WORD)'",
        ..CLIENT
    },
    Client {
        name: "npm",
        targets: &["registry.npmjs.org:443"],
        proof: "demo from npm",
        script: "npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --loglevel=error \
                 --cafile=/etc/ssl/certs/ca-certificates.crt demo && node -e 'console.log(require(\"demo\"))'",
        ..CLIENT
    },
    Client {
        name: "cargo",
        targets: &["index.crates.io:443", "static.crates.io:443"],
        proof: "demo from crates",
        script: "export PATH=$TOOLCHAIN/bin:$PATH CARGO_HOME=$PWD/cargo CARGO_NET_RETRY=0; mkdir -p app/src
printf '[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[dependencies]\ndemo = \"1\"\n' > app/Cargo.toml
touch app/src/lib.rs
cargo fetch -q --manifest-path app/Cargo.toml && cat cargo/registry/src/*/demo-1.0.0/src/lib.rs",
        ..CLIENT
    },
    Client {
        name: "apt",
        targets: &["deb.debian.org:80"],
        proof: "demo from apt",
        script: "mkdir -p apt/lists/partial apt/cache/archives/partial apt/etc; touch apt/status
echo 'deb [trusted=yes] http://deb.debian.org/debian/ ./' > apt/etc/list
apt() { apt-get -q -o APT::Sandbox::User=\"$(id -un)\" -o Dir::Etc::sourcelist=$PWD/apt/etc/list -o Dir::Etc::sourceparts=- \
    -o Dir::State=$PWD/apt -o Dir::State::lists=$PWD/apt/lists -o Dir::State::status=$PWD/apt/status -o Dir::Cache=$PWD/apt/cache \
    -o Acquire::Retries=0 -o Debug::NoLocking=1 \"$@\"; }
apt update -o APT::Update::Error-Mode=any && apt download demo && dpkg-deb -x demo_1.0.0_all.deb out && cat out/usr/share/demo/word",
        ..CLIENT
    },
    Client {
        name: "node",
        targets: &["node.test:443"],
        proof: "content of node.test",
        script: "node -e 'fetch(\"https://node.test/\").then(r => r.text()).then(console.log, e => { console.error(e); process.exit(1) })'",
        ..CLIENT
    },
    Client {
        name: "requests",
        targets: &["requests.test:443"],
        proof: "content of requests.test",
        script: "/usr/bin/python3 -c 'import requests; print(requests.get(\"https://requests.test/\", timeout=20).text)'",
        ..CLIENT
    },
    Client {
        name: "sockets",
        targets: &["sockets.test:8080"],
        proof: "content of sockets.test",
        script: "/usr/bin/python3 $SHARED/probe.py fetch-blocking sockets.test 8080",
        ..CLIENT
    },
    Client {
        name: "non-blocking",
        targets: &["sockets.test:8080"],
        proof: "content of sockets.test",
        script: "/usr/bin/python3 $SHARED/probe.py fetch-non-blocking sockets.test 8080",
        ..CLIENT
    },
    Client {
        name: "asyncio",
        targets: &["asyncio.test:443"],
        proof: "content of asyncio.test",
        script: "/usr/bin/python3 $SHARED/probe.py fetch-asyncio asyncio.test 443",
        ..CLIENT
    },
    Client {
        name: "java",
        targets: &["java.test:443"],
        proof: "content of java.test",
        script: "java -cp $SHARED/java -Djavax.net.ssl.trustStore=$SHARED/ca.p12 -Djavax.net.ssl.trustStorePassword=changeit \
                 Fetch https://java.test/",
        ..CLIENT
    },
    Client {
        name: "own-resolver",
        targets: &["own-resolver.test:80"],
        proof: "content of own-resolver.test",
        script: "$SHARED/own-resolver own-resolver.test",
        full_only: Some("there are no datagrams, by which it asks for names"),
        ..CLIENT
    },
    Client {
        name: "psql",
        targets: &["postgres.test:5432"],
        proof: "the sum is 42",
        script: "psql -h postgres.test -U stockade-test -d postgres -Atc \"select 'the sum is ' || 6*7\"",
        service: Some("postgres"),
        ..CLIENT
    },
    Client {
        name: "redis-cli",
        targets: &["redis.test:6379"],
        proof: "PONG",
        script: "redis-cli -h redis.test ping | grep PONG",
        service: Some("redis"),
        ..CLIENT
    },
    Client {
        name: "address",
        targets: &["9.1.2.3:8080"],
        proof: "content of 9.1.2.3",
        script: "curl -sS http://9.1.2.3:8080/",
        ..CLIENT
    },
    Client {
        name: "address-v6",
        targets: &["[2606:4700:2::5]:8080"],
        proof: "content of",
        script: "curl -sS -g 'http://[2606:4700:2::5]:8080/'",
        ..CLIENT
    },
    Client {
        name: "proxy-absolute",
        targets: &["absolute.test:80"],
        proof: "content of absolute.test",
        script: "[ -n \"$http_proxy\" ] && curl -sSf http://absolute.test/",
        with_proxies: true,
        ..CLIENT
    },
    Client {
        name: "proxy-connect",
        targets: &["connect.test:443"],
        proof: "content of connect.test",
        script: "[ -n \"$https_proxy\" ] && curl -sS https://connect.test/",
        with_proxies: true,
        ..CLIENT
    },
    Client {
        name: "proxy-socks",
        targets: &["socks.test:443"],
        proof: "content of socks.test",
        script: "host=${http_proxy#http://}; case $ALL_PROXY in socks*) ;; *) ALL_PROXY=socks5h://${host%:*}:1080 ;; esac
curl -sS -x \"$ALL_PROXY\" https://socks.test/",
        with_proxies: true,
        ..CLIENT
    },
];

/// Longest that one client may take.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Each client without the sandbox, with all grants, and with those alone that
/// come before each of its targets.
pub fn tasks() -> Vec<Task> {
    CLIENTS.iter().flat_map(tasks_of).collect()
}

fn tasks_of(client: &'static Client) -> Vec<Task> {
    let mut tasks = vec![control_task(client.name, move |lab| control(client, lab))];
    for level in [Level::Full, Level::Restricted] {
        tasks.extend(TestUser::available_users().into_iter().flat_map(|user| inside(client, user, level)));
    }
    for task in &mut tasks {
        task.service = client.service;
        if matches!(client.service, Some("postgres" | "ssh")) && strongest() != TestUser::Root {
            task.not_here = Some("this service changes its user, which needs a root harness".to_owned());
        }
    }
    tasks
}

/// With each part of its grants, from none to all.
fn inside(client: &'static Client, user: TestUser, level: Level) -> impl Iterator<Item = Task> {
    (0..=client.targets.len()).map(move |granted| {
        let step = if granted == client.targets.len() { "granted".to_owned() } else { format!("lacking-{granted}") };
        let name = format!("{}/{step}/{}/{}", client.name, user.word(), level.word());
        let mut task = Task::new(name, move |lab| sandboxed(client, user, level, granted, lab));
        task.turn = Turn::One(format!("{}/{step}", client.name));
        if let (Some(why), Level::Restricted) = (client.full_only, level) {
            task.not_here = Some(format!("not promised at this level: {why}"));
        }
        task
    })
}

fn script(client: &Client) -> Script<'_> {
    Script { with_proxies: client.with_proxies, timeout: TIMEOUT, ..Script::new(client.script) }
}

fn control(client: &Client, lab: &Lab) -> Result<()> {
    let seen = lab.bare(strongest(), &script(client))?;
    works(client, &seen)
}

fn works(client: &Client, seen: &Seen) -> Result<()> {
    ensure!(seen.output.ended == ProgramEnd::Code(0), "it fails: {}", seen.story());
    ensure!(seen.output.stdout.contains(client.proof), "it does not print `{}`: {}", client.proof, seen.story());
    for target in client.targets {
        ensure!(seen.sight.reached(target), "{target} saw nobody: {}", seen.story());
    }
    Ok(())
}

fn sandboxed(client: &Client, user: TestUser, level: Level, granted: usize, lab: &Lab) -> Result<()> {
    let grants: Vec<String> = client.targets[..granted].iter().map(|target| format!("connect {target}")).collect();
    let grants: Vec<&str> = grants.iter().map(String::as_str).collect();
    let seen = lab.sandboxed(user, Powers::of(level, &grants), &script(client))?;
    let strangers = seen.sight.strangers(&client.targets[..granted]);
    ensure!(strangers.is_empty(), "reached without a grant: {strangers:?}\n{}", seen.story());
    match client.targets.get(granted) {
        Some(missing) => refused(&seen, level, missing),
        None => {
            works(client, &seen)?;
            recorded(client, level, &seen)
        }
    }
}

/// What was refused. Programs try datagram sockets to see which family of
/// addresses there is; at level `restricted` there are none.
fn refusals(seen: &Seen, level: Level) -> Vec<&Value> {
    let counts = |denial: &&Value| level == Level::Full || denial["operation"] == "connect";
    seen.refused().into_iter().filter(counts).collect()
}

/// The record names each target, with bytes in both directions, and no refusal.
fn recorded(client: &Client, level: Level, seen: &Seen) -> Result<()> {
    for target in client.targets {
        let Some(used) = seen.use_of(target) else { bail!("{target} is not on record: {}", seen.story()) };
        let count = |name: &str| used[name].as_u64().unwrap_or_default();
        let moved = ["connections", "bytes_up", "bytes_down"].iter().all(|name| count(name) > 0);
        ensure!(moved, "the record says that nothing moved: {}", seen.story());
    }
    ensure!(refusals(seen, level).is_empty(), "something was refused: {}", seen.story());
    Ok(())
}

/// It fails, and one refusal says what, to whom, and which grant would do.
fn refused(seen: &Seen, level: Level, target: &str) -> Result<()> {
    ensure!(seen.output.ended != ProgramEnd::Code(0), "it works without the grant: {}", seen.story());
    let is_exact = |denial: &&Value| {
        denial["operation"] == "connect"
            && denial["object"] == target
            && denial["grant"] == format!("connect {target}")
            && denial["resolution"] != "granted"
    };
    let refused = refusals(seen, level);
    ensure!(!refused.is_empty(), "no refusal is on record: {}", seen.story());
    ensure!(refused.iter().all(is_exact), "a refusal is not exactly that of {target}: {}", seen.story());
    Ok(())
}
