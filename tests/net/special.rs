//! Rows with steps outside the sandbox.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use stockade_testkit::{RunningProgram, TestListeners, TestUser};
use stockade_tests::Level;

use crate::lab::{Lab, Powers, Script};
use crate::task::strongest;

/// esc-0147: no list, and an empty one, allow nothing.
pub fn nothing_is_allowed(lab: &Lab, run: Option<(TestUser, Level)>) -> Result<()> {
    let script = Script::new("curl -s -m 3 http://allowed.test/");
    let Some((user, level)) = run else {
        let seen = lab.bare(strongest(), &script)?;
        ensure!(seen.sight.reached("allowed.test:80"), "it does not get through: {}", seen.story());
        return Ok(());
    };
    for config in ["", "[profiles.workspace.egress]\nallow = []\n"] {
        let seen = lab.sandboxed(user, Powers { config, ..Powers::of(level, &[]) }, &script)?;
        let strangers = seen.sight.strangers(&[]);
        ensure!(strangers.is_empty(), "{strangers:?}\n{}", seen.story());
    }
    Ok(())
}

/// esc-0138: daemons of the host that resolve names are not there.
pub fn resolver_daemons(lab: &Lab, run: Option<(TestUser, Level)>) -> Result<()> {
    let sockets = ["/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve"];
    let mut daemons = TestListeners::new();
    for socket in sockets {
        daemons.listen_stream(Path::new(socket))?;
    }
    let text = format!(
        "resolvectl query canary.attacker.test; getent ahosts canary.attacker.test\n\
         /usr/bin/python3 $SHARED/probe.py unix {}",
        sockets.join(" ")
    );
    let script = Script::new(&text);
    let seen = match run {
        None => lab.bare(strongest(), &script),
        Some((user, level)) => lab.sandboxed(user, Powers::of(level, &[]), &script),
    };
    // Programs of other rows would find them too.
    for socket in sockets {
        fs::remove_file(socket)?;
    }
    let seen = seen?;
    let reached = [daemons.reached_servers(), seen.sight.strangers(&[])].concat();
    ensure!(reached.is_empty() == run.is_some(), "reached: {reached:?}\n{}", seen.story());
    Ok(())
}

/// Sockets that listen on the host's side.
fn listening() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = fs::read_to_string(table)?;
        let rows = text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
        found.extend(rows.filter(|row| row.get(3) == Some(&"0A")).map(|row| row[1].to_owned()));
    }
    found.sort();
    Ok(found)
}

/// esc-0177: while a run uses the door, no socket on the host's side leads to it.
pub fn others_reach_no_proxy(lab: &Lab, run: Option<(TestUser, Level)>) -> Result<()> {
    let before = listening()?;
    let Some((user, level)) = run else {
        let _open = std::net::TcpListener::bind("127.0.0.1:0")?;
        ensure!(listening()? != before, "a listener is not seen");
        return Ok(());
    };
    let text = "curl -s http://allowed.test/; curl -s --noproxy '*' http://allowed.test/; echo READY; sleep 60";
    let script = Script { with_proxies: true, ..Script::new(text) };
    let powers = Powers::of(level, &["connect allowed.test:80"]);
    let (world, running) = lab.start(user, powers, &script)?;
    let ready = wait_for(&running, "READY");
    let meanwhile = listening();
    running.send_signal(Signal::TERM)?;
    let output = running.wait_for_end()?;
    drop(world);
    ensure!(ready, "the run does not get there: {}", output.combined_text());
    ensure!(meanwhile? == before, "the door listens on the host's side");
    Ok(())
}

/// esc-0178: with the door's process gone, nothing gets out any more.
pub fn kill_proxy(lab: &Lab, run: Option<(TestUser, Level)>) -> Result<()> {
    let text =
        "while :; do curl -s -m 2 http://allowed.test/; curl -s -m 2 http://denied.test/; echo READY; sleep 0.1; done";
    let script = Script { timeout: Duration::from_secs(30), ..Script::new(text) };
    let mark = lab.mark()?;
    let Some((user, level)) = run else {
        let seen = lab.bare(strongest(), &Script { timeout: Duration::from_secs(2), ..script })?;
        ensure!(seen.sight.reached("denied.test:80"), "it does not get through: {}", seen.story());
        return Ok(());
    };
    let powers = Powers::of(level, &["connect allowed.test:80"]);
    let (world, running) = lab.start(user, powers, &script)?;
    let ready = wait_for(&running, "READY");
    running.send_signal(Signal::KILL)?;
    let output = running.wait_for_end()?;
    drop(world);
    ensure!(ready, "the run does not get there: {}", output.combined_text());
    // What was on its way when the door died has come or gone by then.
    thread::sleep(Duration::from_millis(300));
    let dead = lab.mark()?;
    thread::sleep(Duration::from_secs(3));
    let later = lab.sight_from(dead)?.strangers(&[]);
    ensure!(later.is_empty(), "after the door's death: {later:?}");
    let whole = lab.sight_from(mark)?;
    ensure!(whole.reached("allowed.test:80"), "the run reached nothing while the door stood: {whole}");
    let strangers = whole.strangers(&["allowed.test:80"]);
    ensure!(strangers.is_empty(), "{strangers:?}");
    Ok(())
}

fn wait_for(running: &RunningProgram, text: &str) -> bool {
    for _ in 0..1000 {
        if running.stdout_so_far().contains(text) {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}
