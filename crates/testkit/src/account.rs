//! Who runs an attempt. It must not know what is run.

use std::fs;
use std::process;

use anyhow::{Context as _, Result, bail};

/// The account the harness makes for attempts of an ordinary user.
const TEST_ACCOUNT: &str = "stockade-test";

/// Which kind of user an attempt runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// User id 0.
    Root,
    /// Anyone else.
    Ordinary,
}

impl User {
    /// The word used in reports and arguments.
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "ordinary",
        }
    }

    /// The users that attempts can run as here: both where the harness is
    /// root, else only the one it runs as.
    pub fn available() -> Vec<Self> {
        if rustix::process::geteuid().is_root() { vec![Self::Root, Self::Ordinary] } else { vec![Self::Ordinary] }
    }
}

/// A user as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its kind.
    pub user: User,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

impl Account {
    /// The account for `user`, made with `useradd` if the harness is root and
    /// there is none yet.
    ///
    /// # Errors
    /// Where the harness may not act as that user, or the account cannot be made.
    pub fn of(user: User) -> Result<Self> {
        let own = rustix::process::geteuid();
        match user {
            User::Root if own.is_root() => Ok(Self { user, uid: 0, gid: 0 }),
            User::Root => bail!("acting as root needs a harness run as root"),
            User::Ordinary if own.is_root() => Self::ordinary(),
            User::Ordinary => Ok(Self { user, uid: own.as_raw(), gid: rustix::process::getegid().as_raw() }),
        }
    }

    fn ordinary() -> Result<Self> {
        if let Some(account) = Self::look_up()? {
            return Ok(account);
        }
        let status = process::Command::new("useradd")
            .args(["--no-create-home", "--user-group", "--shell", "/bin/bash", TEST_ACCOUNT])
            .status()
            .context("starting useradd")?;
        match Self::look_up()? {
            Some(account) => Ok(account),
            None => bail!("useradd {TEST_ACCOUNT} ended with {status} and made no account"),
        }
    }

    fn look_up() -> Result<Option<Self>> {
        let table = fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
        for line in table.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, uid, gid, ..] = fields.as_slice()
                && *name == TEST_ACCOUNT
            {
                return Ok(Some(Self { user: User::Ordinary, uid: uid.parse()?, gid: gid.parse()? }));
            }
        }
        Ok(None)
    }

    /// True where the harness must change its identity to act as this account.
    pub(crate) fn differs_from_harness(&self) -> bool {
        rustix::process::geteuid().as_raw() != self.uid
    }
}
