//! Repeats a test as root and as an ordinary user. The native backend's tests use it too.
#![allow(dead_code, clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Set in a test's own process: who it is running as.
const ROLE: &str = "STOCKADE_TEST_ROLE";
/// The ordinary user that tests run as where they start as root.
const USER: &str = "stockade-test";

/// Runs `body` in a process of its own as root and as an ordinary user, or only
/// as the present user where that is not root.
pub fn in_each_role(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        return body();
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run as root: {test}");
        return in_role(test, "own", &[]);
    }
    make_user();
    in_role(test, "root", &[]);
    in_role(test, "user", &["setpriv", "--reuid", USER, "--regid", USER, "--init-groups", "--inh-caps", "-all"]);
}

fn in_role(test: &str, role: &str, prefix: &[&str]) {
    let directory = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let copy = directory.path().join("test");
    // By another program: a descriptor of our own would be held open by whatever
    // another test's thread is forking right now, and the copy could not be run.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let copy = copy.to_str().unwrap().to_owned();
    let mut line: Vec<&str> = prefix.to_vec();
    line.extend([copy.as_str(), "--exact", test, "--nocapture", "--test-threads", "1"]);
    let mut command = Command::new(line[0]);
    let output = command.args(&line[1..]).env(ROLE, role).env("RUST_BACKTRACE", "0").current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "as {role}:\n{text}");
}

fn make_user() {
    let exists = Command::new("id").args(["-u", USER]).output().unwrap().status.success();
    if !exists {
        // Another test may be making it at the same time.
        let _ = Command::new("useradd").args(["--system", "--no-create-home", USER]).status();
        assert!(Command::new("id").args(["-u", USER]).output().unwrap().status.success(), "no test user");
    }
}
