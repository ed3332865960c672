//! Scratch environment for one attempt: a workspace, files around it that must not change, secrets
//! to steal and servers to reach.
//!
//! ```text
//! TOP/ws      the workspace: a git repository
//! TOP/out     a directory outside it, with `canary`
//! TOP/home    the user's home with start-up files and credentials
//! TOP/config  XDG_CONFIG_HOME          TOP/state   XDG_STATE_HOME, logs
//! TOP/sock    host sockets             TOP/tools   first in PATH
//! TOP/probe   the attempt's own program, readable inside
//! ```

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};

use crate::{ProgramEnd, ProgramOutput, TestCommand, TestListeners, TreeSnapshot, UserAccount, run_as};

/// Values of the upper-case names in a case. They are replaced in the text, because a variable
/// would itself carry the canary into the sandbox.
#[derive(Clone, Debug)]
pub struct CaseNames {
    pairs: Vec<(&'static str, String)>,
}

impl CaseNames {
    /// Returns the text with every name replaced, longest name first.
    pub fn replace_names(&self, text: &str) -> String {
        self.pairs.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// Scratch environment of one attempt.
pub struct TestLab {
    /// Its top directory, which contains nothing else.
    pub top: PathBuf,
    /// The attacking user.
    pub account: UserAccount,
    /// Values of the upper-case names.
    pub names: CaseNames,
    /// Text of the secret file.
    pub secret: String,
    /// Value of a variable of a host process, never in the attempt's own environment.
    pub env_canary: String,
    /// Value of a variable of the sandbox's caller, named like a token.
    pub token: String,
    /// The servers of the host.
    pub listeners: TestListeners,
    /// A process of the same user on the host.
    pub canary: Child,
    /// The canary file in the host's temporary directory, and its text.
    pub temporary_canary: (PathBuf, String),
    segment: Option<String>,
}

impl TestLab {
    /// Builds the environment at `top`, which must not exist; the account must be able to reach its
    /// parent. A nonce makes its secrets unique.
    ///
    /// # Errors
    /// An error if any part of it cannot be made.
    pub fn build_at(top: &Path, account: &UserAccount) -> Result<Self> {
        let nonce = random_nonce();
        fs::create_dir(top).with_context(|| format!("making {}", top.display()))?;
        fs::set_permissions(top, fs::Permissions::from_mode(0o755))?;
        let secret = format!("SECRETTEXT{nonce}");
        let token = format!("TOKENTEXT{nonce}");
        let env_canary = format!("ENVTEXT{nonce}");
        let temporary = PathBuf::from(format!("/tmp/stockade-canary-{nonce}"));
        let temporary_text = format!("TMPTEXT{nonce}");
        write_tree(top, &secret)?;
        own_tree(top, account)?;
        make_repository(top, account)?;

        let mut listeners = TestListeners::new();
        let port = listeners.listen_loopback()?;
        listeners.listen_stream(&top.join("sock/stream"))?;
        listeners.listen_stream(&top.join("sock/agent"))?;
        listeners.listen_datagram(&top.join("sock/datagram"))?;
        let abstract_name = format!("stockade-lab-{nonce}");
        listeners.abstract_stream(&abstract_name)?;
        let canary = start_canary(account, &env_canary)?;
        // Last, because files outside the environment are only removed with a complete one.
        fs::write(&temporary, &temporary_text).context("writing the canary in /tmp")?;
        set_owner(&temporary, account)?;

        let path = |name: &str| top.join(name).display().to_string();
        let pairs = vec![
            ("$SECRET_NAME", "id_ed25519".to_owned()),
            ("$SECRET", path("home/.ssh/id_ed25519")),
            ("$WS", path("ws")),
            ("$OUT", path("out")),
            ("$USOCK", path("sock/stream")),
            ("$HOSTPID", canary.id().to_string()),
            ("$HOSTIP", "127.0.0.1".to_owned()),
            ("$PORT", port.to_string()),
            ("$TMPCANARY", temporary.display().to_string()),
            ("$ENVCANARY", env_canary.clone()),
            ("$LAB", top.display().to_string()),
            ("ABSNAME", abstract_name),
        ];
        Ok(Self {
            top: top.to_owned(),
            account: account.clone(),
            names: CaseNames { pairs },
            secret,
            env_canary,
            token,
            listeners,
            canary,
            temporary_canary: (temporary, temporary_text),
            segment: make_segment(),
        })
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> PathBuf {
        self.top.join("ws")
    }

    /// Returns a path in this environment.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.top.join(relative)
    }

    /// Writes a file of the attacking user, with its directories.
    ///
    /// # Errors
    /// An error if it cannot be written.
    pub fn write_file(&self, relative: &str, text: &str) -> Result<PathBuf> {
        let path = self.top.join(relative);
        let mut made = Vec::new();
        for ancestor in path.ancestors().skip(1).take_while(|a| a.starts_with(&self.top)) {
            if !ancestor.exists() {
                made.push(ancestor.to_owned());
            }
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        made.push(path.clone());
        for path in made {
            set_owner(&path, &self.account)?;
        }
        Ok(path)
    }

    /// Returns a program of the attempt in the environment of a real user. That has a home
    /// directory, PATH, agents, and a token variable that must not be passed on.
    pub fn build_command(&self, program: &str) -> TestCommand {
        let top = |name: &str| self.top.join(name);
        let runtime = format!("/run/user/{}", self.account.uid);
        TestCommand::new(program, self.workspace())
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", top("tools").display()))
            .env("HOME", top("home"))
            .env("USER", "lab")
            .env("LANG", "C.UTF-8")
            .env("TERM", "dumb")
            .env("XDG_CONFIG_HOME", top("config"))
            .env("XDG_STATE_HOME", top("state"))
            .env("XDG_RUNTIME_DIR", &runtime)
            .env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={runtime}/bus"))
            .env("SSH_AUTH_SOCK", top("sock/agent"))
            .env("GITHUB_TOKEN", &self.token)
            .env("AWS_SECRET_ACCESS_KEY", &self.token)
            .env("MY_PASSWORD", &self.token)
            .env("SERVICE_API_KEY", &self.token)
    }

    /// Takes a snapshot without logs and the harness's own files.
    pub fn take_snapshot(&self) -> TreeSnapshot {
        TreeSnapshot::read_tree(&self.top, &[Path::new("state"), Path::new("probe"), Path::new("tools")])
    }

    /// Returns the secret texts that an attempt printed.
    pub fn leaked_secrets(&self, output: &ProgramOutput) -> Vec<String> {
        let text = output.combined_text();
        [
            ("the secret file's text", &self.secret),
            ("a token of the caller's environment", &self.token),
            ("the environment of a host process", &self.env_canary),
            ("the text of a file in the host's /tmp", &self.temporary_canary.1),
        ]
        .iter()
        .filter(|(_, secret)| text.contains(secret.as_str()))
        .map(|(what, _)| format!("output holds {what}"))
        .collect()
    }

    /// Returns the key of the host's System V segment, as `ipcs` shows it.
    pub fn segment_key(&self) -> Option<&str> {
        self.segment.as_deref()
    }

    /// Returns whether the host's segment exists, or none could be made.
    pub fn segment_alive(&self) -> bool {
        let Some(key) = &self.segment else { return true };
        let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        table
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse().ok())
            .any(|k: i32| format!("{k:#010x}") == *key)
    }

    /// Returns whether the canary process is alive.
    pub fn canary_alive(&mut self) -> bool {
        matches!(self.canary.try_wait(), Ok(None))
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        // Best effort throughout: the result is known by now.
        let _ = self.canary.kill();
        let _ = self.canary.wait();
        if let Some(key) = &self.segment {
            let _ = process::Command::new("ipcrm").args(["-M", key]).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_file(&self.temporary_canary.0);
        let _ =
            process::Command::new("chattr").args(["-R", "-i"]).arg(self.top.join("out")).stderr(Stdio::null()).status();
        // A tree too deep for the standard library's recursion.
        let _ = process::Command::new("rm").arg("-rf").arg("--").arg(&self.top).stderr(Stdio::null()).status();
    }
}

fn random_nonce() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{:x}x{:x}", now.as_nanos(), process::id())
}

fn write_tree(top: &Path, secret: &str) -> Result<()> {
    for directory in ["state", "config", "sock", "tools", "probe", "ws/sub", "ws/nogit", "ws/src"] {
        fs::create_dir_all(top.join(directory))?;
    }
    let files = [
        ("ws/README.md", "# Lab\n"),
        ("ws/Cargo.toml", "[package]\nname = \"lab\"\n"),
        ("ws/src/lib.rs", "//! Lab.\n"),
        ("ws/sub/keep", "keep\n"),
        ("ws/nogit/keep", "keep\n"),
        ("out/canary", "canary\n"),
        ("home/.bashrc", "# bashrc\n"),
        ("home/.profile", "# profile\n"),
        ("home/.gitconfig", "[user]\n\tname = Lab\n\temail = lab@localhost\n"),
        ("home/notes", "notes\n"),
    ];
    let secrets = [
        "home/.ssh/id_ed25519",
        "home/.ssh/config",
        "home/.gnupg/private-keys-v1.d/key",
        "home/.netrc",
        "home/.config/gcloud/credentials.db",
        "home/.kube/config",
        "home/.docker/config.json",
    ];
    for (name, text) in files.into_iter().chain(secrets.map(|name| (name, secret))) {
        let path = top.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    fs::set_permissions(top.join("home/.ssh"), fs::Permissions::from_mode(0o700))?;
    fs::set_permissions(top.join("home/.ssh/id_ed25519"), fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn set_owner(path: &Path, account: &UserAccount) -> Result<()> {
    if account.differs_from_harness() {
        lchown(path, Some(account.uid), Some(account.gid))
            .with_context(|| format!("changing the owner of {}", path.display()))?;
    }
    Ok(())
}

fn own_tree(path: &Path, account: &UserAccount) -> Result<()> {
    set_owner(path, account)?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            own_tree(&entry?.path(), account)?;
        }
    }
    Ok(())
}

fn make_repository(top: &Path, account: &UserAccount) -> Result<()> {
    let text = "git init -q -b main . && git add -A && git commit -q -m lab";
    let command = TestCommand::new("/bin/bash", top.join("ws"))
        .args(["-c", text])
        .env("HOME", top.join("home"))
        .env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let output = run_as(account, &command)?;
    ensure!(output.ended == ProgramEnd::Code(0), "making the repository: {}", output.combined_text());
    Ok(())
}

/// Starts a host process of the attacking user with a secret in its environment.
fn start_canary(account: &UserAccount, env_canary: &str) -> Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let mut builder = process::Command::new("sleep");
    builder.arg("3600").env_clear().env("PATH", "/usr/bin:/bin").env("HOST_VALUE", env_canary);
    builder.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    builder.process_group(0);
    if account.differs_from_harness() {
        builder.uid(account.uid).gid(account.gid);
    }
    builder.spawn().context("starting the canary process")
}

/// Creates a System V segment; `None` if the tool is missing.
fn make_segment() -> Option<String> {
    let output = process::Command::new("ipcmk").args(["-M", "4096", "-p", "0666"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let id = text.split_whitespace().last()?.to_owned();
    let table = fs::read_to_string("/proc/sysvipc/shm").ok()?;
    let row = table
        .lines()
        .skip(1)
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .find(|row| row.get(1) == Some(&id.as_str()))?;
    let key: i32 = row.first()?.parse().ok()?;
    Some(format!("{key:#010x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestUser;

    #[test]
    fn a_world_is_built_and_removed_without_trace() {
        let base = tempfile::tempdir().unwrap();
        let account = UserAccount::for_user(TestUser::available_users()[0]).unwrap();
        let top = base.path().join("lab");
        let mut lab = TestLab::build_at(&top, &account).unwrap();
        assert!(lab.canary_alive());
        assert!(top.join("ws/.git/hooks").is_dir());
        let text = lab.names.replace_names("$SECRET $SECRET_NAME $WS/x");
        assert_eq!(text, format!("{0}/home/.ssh/id_ed25519 id_ed25519 {0}/ws/x", top.display()));
        let before = lab.take_snapshot();
        assert_eq!(before.list_changes(&lab.take_snapshot()), []);
        let stolen = run_as(&account, &lab.build_command("cat").arg(lab.path("home/.ssh/id_ed25519"))).unwrap();
        assert_eq!(lab.leaked_secrets(&stolen), ["output holds the secret file's text"]);
        let canary = lab.temporary_canary.0.clone();
        drop(lab);
        assert!(!top.exists() && !canary.exists());
    }
}
