//! A scratch home and workspace for one user, and the command run in them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand, TestUser, UserAccount, run_as};
use stockade_tests::cross_section::{each_or_one, one_or_each};
use tempfile::TempDir;

/// Programs are looked for here, for every user alike.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// One user's scratch world. Everything in it belongs to that user.
pub struct World {
    pub account: UserAccount,
    top: TempDir,
}

impl World {
    pub fn new(user: TestUser) -> Self {
        let account = UserAccount::for_user(user).unwrap();
        // Not in a temp directory: those are private inside.
        let directory = if account.user == TestUser::available_users()[0] && user == TestUser::Ordinary {
            own_home()
        } else {
            "/home".into()
        };
        let top = tempfile::Builder::new().prefix("stockade-e2e-").tempdir_in(directory).unwrap();
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let world = Self { account, top };
        world.own(world.top.path());
        for dir in ["home", "ws", "out"] {
            world.dir(dir);
        }
        world
    }

    /// A directory of the user's.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.top.path().join(name);
        fs::create_dir_all(&path).unwrap();
        self.own(&path);
        path
    }

    /// A file of the user's.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.top.path().join(name);
        fs::write(&path, text).unwrap();
        self.own(&path);
        path
    }

    fn own(&self, path: &Path) {
        chown(path, Some(self.account.uid), Some(self.account.gid)).unwrap();
    }

    pub fn home(&self) -> PathBuf {
        self.top.path().join("home")
    }

    pub fn workspace(&self) -> PathBuf {
        self.top.path().join("ws")
    }

    /// Outside every writable directory.
    pub fn outside(&self) -> PathBuf {
        self.top.path().join("out")
    }

    /// A program of the user's own, without any sandbox, in the workspace.
    pub fn bare(&self, argv: &[&str]) -> TestCommand {
        TestCommand::new(argv[0], self.workspace())
            .args(&argv[1..])
            .env("PATH", PATH)
            .env("HOME", self.home())
            .env("LANG", "C.UTF-8")
            .timeout(Duration::from_secs(120))
    }

    /// `stockade run` of a program in the workspace, never asking.
    pub fn stockade(&self, options: &[&str], argv: &[&str]) -> TestCommand {
        let workspace = self.workspace();
        let mut all = vec![binary(), "run".into(), "--mode".into(), "never".into(), "--workspace".into()];
        all.push(workspace.to_str().unwrap().to_owned());
        all.extend(options.iter().map(|&o| o.to_owned()));
        all.push("--".into());
        all.extend(argv.iter().map(|&a| a.to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        self.bare(&all)
    }

    pub fn run(&self, command: &TestCommand) -> ProgramOutput {
        run_as(&self.account, command).unwrap()
    }

    /// Runs in the sandbox and expects exit code 0.
    #[track_caller]
    pub fn passes(&self, options: &[&str], argv: &[&str]) -> ProgramOutput {
        let output = self.run(&self.stockade(options, argv));
        assert_eq!(output.ended, ProgramEnd::Code(0), "{argv:?}\n{}\n{}", output.stdout, output.stderr);
        output
    }

    /// Runs a shell script in the sandbox and gives the outcome.
    #[track_caller]
    pub fn outcome(&self, options: &[&str], argv: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(options);
        let output = self.run(&self.stockade(&all, argv));
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|e| panic!("{argv:?}: {e}\n{}\n{}", output.stdout, output.stderr))
    }
}

/// The home of whoever runs the tests.
fn own_home() -> PathBuf {
    std::env::var_os("HOME").expect("HOME is set").into()
}

/// The binary under test.
pub fn binary() -> String {
    std::env::var("STOCKADE_BIN").expect("STOCKADE_BIN names the binary under test; ./test sets it")
}

/// Plays a test once for each kind of user that can be had here, or for one of them where
/// `STOCKADE_ONE_USER` is set.
pub fn each_user<T: Fn(&World)>(test: T) {
    // The function that the closure is of.
    as_users(each_or_one(std::any::type_name::<T>(), TestUser::available_users()), test);
}

/// The same for a test that takes long: as the user whose turn it is, and as each where
/// `STOCKADE_ALL` is set.
pub fn one_user<T: Fn(&World)>(test: T) {
    // The function that the closure is of.
    as_users(one_or_each(std::any::type_name::<T>(), TestUser::available_users()), test);
}

fn as_users(users: Vec<TestUser>, test: impl Fn(&World)) {
    for user in users {
        let world = World::new(user);
        eprintln!("-- as {}", user.word());
        test(&world);
    }
}
