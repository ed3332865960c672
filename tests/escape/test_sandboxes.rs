//! Sandboxes made by container engines, for attempts: each has a workspace of its own,
//! which is put in the place of the world's. One whose row leaves nothing for the next is
//! lent again: making one takes longer than most attempts.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{ProgramEnd, TestCommand, TestLab, TestUser, UserAccount, run_as, slowness_factor};
use stockade_tests::Level;
use stockade_tests::engines::{engine_name, image_file, socket_address};

use crate::contained::{REMOVAL_TIMEOUT, require_unused};
use crate::row::Row;
use crate::way::{KINDS, Kind};
use crate::world::{World, open_directory};

/// Takes away what an earlier attempt has left, and puts in the workspace that is read.
const ANEW: &str = "find /workspace -mindepth 1 -delete; tar -x --no-same-owner -C /workspace && \
    exec /bin/sh /workspace/probes/afresh.sh true";
/// How long making one, or anything else that is asked of an engine, may take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);

/// One sandbox.
pub struct TestSandbox {
    session: PathBuf,
    kind: &'static Kind,
    /// Holds its workspace, and what who made it knows of it.
    home: PathBuf,
    id: String,
    /// The file that is there while it waits for a row of its profile; none where it is
    /// for one row alone.
    waits: Option<PathBuf>,
}

fn idle(session: &Path) -> PathBuf {
    session.join("idle")
}

fn homes(session: &Path) -> PathBuf {
    session.join("places")
}

/// Makes the directories of sandboxes that are lent.
pub fn open(session: &Path) -> Result<()> {
    open_directory(&idle(session))?;
    open_directory(&homes(session))
}

/// Whether a row has a sandbox for itself: its limits are the sandbox's.
fn is_alone(row: &Row) -> bool {
    row.options.contains(&"--limit")
}

impl TestSandbox {
    /// One for a row: one that waits for it, or a new one.
    pub fn of(world: &World, lab: &TestLab, kind: &'static Kind, row: &Row) -> Result<Self> {
        let session = &world.session;
        if is_alone(row) {
            return Self::make(world, lab, kind, row, (world.labs.join("place"), None));
        }
        let fit = format!("{}.{}.", kind.name, world.profile(row));
        for (name, waits) in waiting(session)? {
            // Whoever removes the file has it.
            if let Some(home) = name.strip_prefix(&fit)
                && fs::remove_file(&waits).is_ok()
            {
                return Self::at(session, kind, homes(session).join(home), Some(waits));
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("{:x}", now.as_nanos());
        let waits = idle(session).join(fit + &name);
        Self::make(world, lab, kind, row, (homes(session).join(name), Some(waits)))
    }

    /// One that was made before.
    fn at(session: &Path, kind: &'static Kind, home: PathBuf, waits: Option<PathBuf>) -> Result<Self> {
        let id = fs::read_to_string(home.join("id")).context("reading the id of a sandbox")?;
        Ok(Self { session: session.to_owned(), kind, home, id, waits })
    }

    fn make(
        world: &World,
        lab: &TestLab,
        kind: &'static Kind,
        row: &Row,
        (home, waits): (PathBuf, Option<PathBuf>),
    ) -> Result<Self> {
        for name in ["", "state", "ws"] {
            open_directory(&home.join(name))?;
        }
        let mut test_sandbox = Self { session: world.session.clone(), kind, home, id: String::new(), waits };
        test_sandbox.empty(&world.account)?;
        let image =
            fs::read_to_string(image_file(&world.session, kind.engine)).context("reading the image's digest")?;
        // Where nothing keeps protected names nothing is bound that the host trusts.
        let work = if kind.has_native_isolation() { "--bind" } else { "--copy" };
        let mut command = test_sandbox
            .stockade(lab.build_command(&test_sandbox.program().display().to_string()), "create")
            .args(["--backend", engine_name(kind.engine), "--image", image.trim()])
            .args(["--profile", world.profile(row), "--level", kind.level().word(), work])
            .arg(test_sandbox.workspace())
            .args(options(row, |name| name == "--limit"));
        if let Some(runtime) = kind.runtime {
            command = command.args(["--runtime", runtime]);
        }
        test_sandbox.id = done(&command)?.trim().to_owned();
        fs::write(test_sandbox.home.join("id"), &test_sandbox.id)?;
        Ok(test_sandbox)
    }

    fn workspace(&self) -> PathBuf {
        self.home.join("ws")
    }

    /// The id of its sandbox.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The level that it says it has.
    pub fn level(&self) -> Level {
        self.kind.level()
    }

    /// The program under test.
    pub fn program(&self) -> PathBuf {
        self.session.join("stockade")
    }

    /// `stockade sandbox` as whoever made it: `command` is the program, and what is around.
    pub fn stockade(&self, command: TestCommand, part: &str) -> TestCommand {
        let socket = socket_address(&self.session, self.kind.engine);
        let state = self.home.join("state");
        // What the engine is to read lies where it sees it: `/tmp` is the row's own.
        let command = command.args(["sandbox", part]).env("XDG_STATE_HOME", &state).env("TMPDIR", state);
        command.env("DOCKER_HOST", &socket).env("CONTAINER_HOST", socket).timeout(OPERATION_TIMEOUT)
    }

    fn plain(&self, part: &str) -> TestCommand {
        let program = host(&self.program().display().to_string());
        self.stockade(program.env("HOME", &self.home), part)
    }

    /// Puts the world's workspace into it. Where it is one of the host, it is then that of
    /// the world: its own directory, which the sandbox was made with, mounted there.
    pub fn furnish(&self, lab: &TestLab) -> Result<()> {
        if !self.kind.has_native_isolation() {
            let pipe_script = "set -o pipefail; tar -c -C \"$0\" . | exec \"$@\"";
            let command = self.plain("exec").args([self.id(), "--", "/bin/sh", "-c", ANEW]);
            return done(&command.with_prefix([
                "/bin/bash",
                "-c",
                pipe_script,
                &lab.workspace().display().to_string(),
            ]))
            .map(drop);
        }
        for entry in fs::read_dir(lab.workspace())? {
            let entry = entry?;
            fs::rename(entry.path(), self.workspace().join(entry.file_name())).context("filling a workspace")?;
        }
        done(&host("/bin/mount").arg("--bind").arg(self.workspace()).arg(lab.workspace())).map(drop)
    }

    /// What goes on in the container beside its first process, for which everybody has
    /// the time that they need to go. gVisor's processes are its own.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        if !self.kind.has_native_isolation() {
            return Ok(Vec::new());
        }
        let container = format!("stockade-{}", self.id);
        let top = host("docker").args(["-H", &socket_address(&self.session, self.kind.engine), "top", &container]);
        let give_up = Instant::now() + REMOVAL_TIMEOUT * slowness_factor();
        loop {
            let listed = done(&top)?;
            let leftovers: Vec<String> = listed.lines().skip(2).map(|line| format!("left running: {line}")).collect();
            if leftovers.is_empty() || Instant::now() > give_up {
                return Ok(leftovers);
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Ends its use for a row. It is lent to another only where the attempt was contained.
    pub fn end(self, world: &World, lab: &TestLab, contained: bool) -> Result<()> {
        let unmounted = match self.kind.has_native_isolation() {
            true => done(&host("/bin/umount").arg(lab.workspace())).map(drop),
            false => Ok(()),
        };
        match &self.waits {
            Some(waits) if contained => {
                unmounted?;
                self.empty(&world.account)?;
                fs::write(waits, "").context("lending a sandbox again")
            }
            _ => self.destroy(),
        }
    }

    /// Empties its workspace, whatever was made of it.
    fn empty(&self, account: &UserAccount) -> Result<()> {
        let workspace = self.workspace();
        done(&host("/usr/bin/find").arg(&workspace).args(["-mindepth", "1", "-delete"]))?;
        chown(&workspace, Some(account.uid), Some(account.gid))?;
        fs::set_permissions(&workspace, fs::Permissions::from_mode(0o755)).context("opening a workspace")
    }

    fn destroy(&self) -> Result<()> {
        done(&self.plain("destroy").arg(&self.id)).map(drop)
    }
}

/// Those that wait for a row, each with its file.
fn waiting(session: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = fs::read_dir(idle(session)).context("listing the sandboxes that wait")?;
    let named =
        entries.map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())));
    named.collect::<Result<_, _>>().context("listing the sandboxes that wait")
}

/// Destroys all that wait; nothing of them goes on.
pub fn close(session: &Path) -> Result<()> {
    for (name, waits) in waiting(session)? {
        let mut parts = name.split('.');
        let kind = parts.next().and_then(|word| KINDS.iter().find(|kind| kind.name == word));
        let (kind, home) = kind.zip(parts.next_back()).with_context(|| format!("what is {name}?"))?;
        let test_sandbox = TestSandbox::at(session, kind, homes(session).join(home), Some(waits))?;
        test_sandbox.destroy()?;
        require_unused(&test_sandbox.home)?;
    }
    Ok(())
}

fn host(program: &str) -> TestCommand {
    TestCommand::new(program, "/").env("PATH", "/usr/local/bin:/usr/bin:/bin")
}

/// Whose the engines are does it.
fn done(command: &TestCommand) -> Result<String> {
    let output = run_as(&UserAccount::for_user(TestUser::Root)?, command)?;
    ensure!(
        output.ended == ProgramEnd::Code(0),
        "{:?} ended with {:?}: {}",
        command.argv,
        output.ended,
        output.combined_text()
    );
    Ok(output.stdout)
}

/// The options of a row whose name is wanted, each with its value.
pub fn options(row: &Row, is_selected: impl Fn(&str) -> bool) -> Vec<&'static str> {
    row.options.chunks(2).filter(|pair| is_selected(pair[0])).flatten().copied().collect()
}
