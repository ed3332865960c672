//! Account that runs an attempt. It must not depend on the program.

use std::fs;
use std::process;

use anyhow::{Context as _, Result, bail};

/// Account that the harness creates for attempts of an ordinary user.
const TEST_ACCOUNT: &str = "stockade-test";

/// Kind of user that runs an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TestUser {
    /// User id 0.
    Root,
    /// Any other user.
    Ordinary,
}

impl TestUser {
    /// Returns the word for reports and arguments.
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "ordinary",
        }
    }

    /// Returns the users that attempts can run as here: both if the harness is root, otherwise only
    /// its own.
    pub fn available_users() -> Vec<Self> {
        if rustix::process::geteuid().is_root() { vec![Self::Root, Self::Ordinary] } else { vec![Self::Ordinary] }
    }
}

/// Ids of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Its kind.
    pub user: TestUser,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

impl UserAccount {
    /// Returns the account for `user`. Creates it with `useradd` if the harness is root and it does
    /// not exist.
    ///
    /// # Errors
    /// An error if the harness may not act as that user, or the account cannot be created.
    pub fn for_user(user: TestUser) -> Result<Self> {
        let own = rustix::process::geteuid();
        match user {
            TestUser::Root if own.is_root() => Ok(Self { user, uid: 0, gid: 0 }),
            TestUser::Root => bail!("acting as root needs a harness run as root"),
            TestUser::Ordinary if own.is_root() => Self::ordinary_account(),
            TestUser::Ordinary => Ok(Self { user, uid: own.as_raw(), gid: rustix::process::getegid().as_raw() }),
        }
    }

    fn ordinary_account() -> Result<Self> {
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
                return Ok(Some(Self { user: TestUser::Ordinary, uid: uid.parse()?, gid: gid.parse()? }));
            }
        }
        Ok(None)
    }

    /// Returns whether the harness must change its identity to act as this account.
    pub(crate) fn differs_from_harness(&self) -> bool {
        rustix::process::geteuid().as_raw() != self.uid
    }
}
