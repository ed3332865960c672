//! Real tasks in sandboxes that last, end to end: a repository is cloned, what it
//! needs is installed through the door, its tests are run, the change is brought
//! back. Two at once, with the same ports and the same paths, do not meet. By this
//! machine's own kernel, by Docker, by Docker with gVisor and by Podman.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{EngineKind, ProgramEnd, RunningProgram, TestUser};

use crate::containers::{Containers, Maker};
use crate::lab::Lab;
use crate::task::Task;
use crate::world::{World, binary};

/// Longest that one step may take.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What every errand may reach, once it has its repository.
const TARGETS: [&str; 2] = ["pypi.org:443", "files.pythonhosted.org:443"];

/// The work: `$1` is what this errand alone knows, and serves on the port that all
/// errands serve on. It waits until the other one serves as well.
const WORK: &str = r#"
set -eu
export PIP_CERT=~/authority.pem
python3 ~/pip.whl/pip install -q --no-cache-dir --root-user-action=ignore --disable-pip-version-check \
    --target ~/lib -r requirements.txt
mkdir -p /tmp/served && echo "$1" > /tmp/served/index.html
python3 -m http.server --bind 127.0.0.1 --directory /tmp/served 8000 2>/dev/null &
trap "kill $!" EXIT
until python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8000/")' 2>/dev/null; do sleep 0.1; done
echo serving
until [ -e ~/go ]; do sleep 0.1; done
WORD=$1 PYTHONPATH=~/lib python3 -m unittest -q
echo "mended by $1" >> README
"#;

pub fn tasks() -> Vec<Task> {
    let two = |user: TestUser| {
        Task::new(format!("errands/{}", user.word()), move |lab| two_at_once(lab, user, &Maker::default()))
    };
    let native = TestUser::available_users().into_iter().map(two);
    let not_here = (!TestUser::available_users().contains(&TestUser::Root)).then(|| "the engine is root's".to_owned());
    let contained = |engine: EngineKind, name: &str| {
        let play = move |lab: &Lab| in_containers(lab, engine);
        Task {
            is_slow: true,
            needs_image: true,
            not_here: not_here.clone(),
            ..Task::new(format!("errands/{name}"), play)
        }
    };
    native.chain([contained(EngineKind::Docker, "docker"), contained(EngineKind::Podman, "podman")]).collect()
}

/// One task's sandbox.
struct Errand<'a> {
    world: &'a World,
    maker: &'a Maker,
    id: String,
    word: &'static str,
}

/// The same errands in sandboxes of a container engine, by each runtime that it has.
fn in_containers(lab: &Lab, kind: EngineKind) -> Result<()> {
    let containers = Containers::start(lab, kind)?;
    let runtimes: &[&[&str]] = match kind {
        EngineKind::Docker => &[&[], &["--runtime", "runsc", "--level", "restricted"]],
        EngineKind::Podman => &[&[]],
    };
    for runtime in runtimes {
        two_at_once(lab, TestUser::Root, &containers.maker(runtime)).with_context(|| format!("with {runtime:?}"))?;
        containers.require_empty()?;
    }
    Ok(())
}

fn two_at_once(lab: &Lab, user: TestUser, maker: &Maker) -> Result<()> {
    let world = World::new(user);
    let mark = lab.mark()?;
    let begin = |word| Errand::begin(lab, &world, maker, word);
    let errands = ["one", "other"].into_iter().map(begin).collect::<Result<Vec<_>>>()?;
    let running = errands.iter().map(Errand::work).collect::<Result<Vec<_>>>()?;
    for (errand, running) in errands.iter().zip(&running) {
        errand.serves(running)?;
    }
    let go = world.file("ws/go", "");
    for errand in &errands {
        errand.sandbox(&["copy", text(&go), &errand.inside("/home/agent/go")])?;
    }
    for (errand, running) in errands.iter().zip(running) {
        let output = running.wait_for_end()?;
        ensure!(output.ended == ProgramEnd::Code(0), "{}: {:?}\n{}", errand.word, output.ended, output.combined_text());
    }
    for errand in &errands {
        errand.comes_back()?;
    }
    let sight = lab.sight_from(mark)?;
    let all = [&TARGETS[..], &["git.test:80"]].concat();
    for target in &all {
        ensure!(sight.reached(target), "{target} saw nobody: {sight}");
    }
    ensure!(sight.strangers(&all).is_empty(), "reached without a grant: {:?}", sight.strangers(&all));
    let sandbox_list = maker.run(&world, &["list"])?;
    ensure!(sandbox_list.is_empty(), "left: {sandbox_list}");
    Ok(())
}

impl<'a> Errand<'a> {
    /// A sandbox with the clone, and what a machine of the lab would have.
    fn begin(lab: &Lab, world: &'a World, maker: &'a Maker, word: &'static str) -> Result<Self> {
        let mut create = vec!["create", "--repo", "http://git.test/demo.git"];
        create.extend(maker.options());
        let id = maker.run(world, &create)?.trim().to_owned();
        let errand = Self { world, maker, id, word };
        for (from, to) in [("$SHARED/pip.whl", "pip.whl"), ("/etc/ssl/certs/ca-certificates.crt", "authority.pem")] {
            errand.sandbox(&["copy", &lab.text(from), &errand.inside(&format!("/home/agent/{to}"))])?;
        }
        Ok(errand)
    }

    fn work(&self) -> Result<RunningProgram> {
        let program = binary();
        let grants = TARGETS.map(|target| format!("connect {target}"));
        let mut argv = vec![program.as_str(), "sandbox", "exec", "--mode", "never"];
        argv.extend(grants.iter().flat_map(|grant| ["--grant", grant]));
        argv.extend([self.id.as_str(), "--", "bash", "-c", WORK, "work", self.word]);
        RunningProgram::start(&self.world.account, &self.maker.command(self.world, &argv))
    }

    fn serves(&self, running: &RunningProgram) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !running.stdout_so_far().contains("serving") {
            ensure!(Instant::now() < deadline, "{} does not serve: {}", self.word, running.stdout_so_far());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The change is the errand's own, and with it goes everything.
    fn comes_back(&self) -> Result<()> {
        let diff = self.sandbox(&["exec", "--mode", "never", &self.id, "--", "git", "--no-pager", "diff"])?;
        ensure!(diff.contains(&format!("\n+mended by {}\n", self.word)), "{diff}");
        let back = self.world.workspace().join(self.word);
        self.sandbox(&["copy", &self.inside("README"), text(&back)])?;
        ensure!(fs::read_to_string(&back)?.ends_with(&format!("mended by {}\n", self.word)), "{}", back.display());
        self.sandbox(&["destroy", &self.id]).map(drop)
    }

    fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.id)
    }

    fn sandbox(&self, arguments: &[&str]) -> Result<String> {
        self.maker.run(self.world, arguments)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
