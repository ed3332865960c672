//! A person answers while a program waits in the middle of its work: however
//! late, the program never notices, and nothing is fetched or run twice, which
//! the servers count.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stockade_testkit::TestUser;
use stockade_tests::cross_section::Turn;

use crate::lab::Lab;
use crate::sight::Sight;
use crate::task::Task;
use crate::terminal::Terminal;
use crate::world::{World, binary};

/// Longest a program may take from one question to the next.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Most questions that any of the works may ask.
const QUESTIONS_MAX: usize = 20;

/// Work that needs connections, and what it is asked for on the way.
struct Work {
    name: &'static str,
    /// What every question is answered with.
    key: &'static str,
    /// How late the first answer comes.
    late: Duration,
    script: &'static str,
    /// Connections that are asked about, each once.
    targets: &'static [&'static str],
    /// Name and path of what is fetched exactly once.
    fetched: &'static [(&'static str, &'static str)],
    /// A file beneath the workspace to which every execution adds a line.
    once: Option<&'static str>,
    /// The program's own exit code, and a text that it prints.
    ends: (i32, &'static str),
}

const LATE: Duration = Duration::from_secs(30);

const WORKS: &[Work] = &[
    Work {
        name: "live-pip",
        key: "o",
        late: Duration::from_secs(20),
        script: "/usr/bin/python3 $SHARED/pip.whl/pip install --no-cache-dir --root-user-action=ignore \
                 --disable-pip-version-check --target lib demo && PYTHONPATH=lib /usr/bin/python3 -c 'import demo; print(demo.WORD)'",
        targets: &["pypi.org:443", "files.pythonhosted.org:443"],
        fetched: &[
            ("pypi.org", "/simple/demo/"),
            ("files.pythonhosted.org", "/packages/demo-1.0.0-py3-none-any.whl"),
        ],
        once: None,
        ends: (0, "demo from the index"),
    },
    Work {
        name: "live-pip-refused",
        key: "n",
        late: Duration::from_secs(2),
        script: "/usr/bin/python3 $SHARED/pip.whl/pip install --no-cache-dir --root-user-action=ignore \
                 --disable-pip-version-check --retries 1 --target lib demo",
        targets: &["pypi.org:443"],
        fetched: &[],
        once: None,
        ends: (1, "ERROR: No matching distribution found for demo"),
    },
    Work {
        name: "late-pip",
        key: "o",
        late: LATE,
        script: "/usr/bin/python3 $SHARED/pip.whl/pip install -q --no-cache-dir --root-user-action=ignore \
                 --disable-pip-version-check --target ~/lib demo && PYTHONPATH=~/lib /usr/bin/python3 -c 'import demo; print(demo.WORD)'",
        targets: &["pypi.org:443", "files.pythonhosted.org:443"],
        fetched: &[
            ("pypi.org", "/simple/demo/"),
            ("files.pythonhosted.org", "/packages/demo-1.0.0-py3-none-any.whl"),
        ],
        once: None,
        ends: (0, "demo from the index"),
    },
    Work {
        name: "late-git",
        key: "o",
        late: LATE,
        script: "git clone -q https://git.test/demo.git clone && cd clone && echo x > file && git add file && \
                 git -c user.name=a -c user.email=a@b -c core.editor='sh -c \"echo edited >> ../ran; echo words > $1\" --' commit -q && \
                 git --no-pager log --format=%s -1",
        targets: &["git.test:443"],
        fetched: &[("git.test", "/demo.git/info/refs?service=git-upload-pack")],
        once: Some("ran"),
        ends: (0, "words"),
    },
    Work {
        name: "late-cargo",
        key: "o",
        late: LATE,
        script: "export PATH=$TOOLCHAIN/bin:$PATH CARGO_HOME=~/cargo; mkdir -p app/src; cd app
printf '[package]\\nname = \"app\"\\nversion = \"1.0.0\"\\nedition = \"2021\"\\n[dependencies]\\ndemo = \"1\"\\n' > Cargo.toml
echo 'fn main() { println!(\"{}\", demo::word()); }' > src/main.rs
echo 'use std::io::Write; fn main() { let f = std::fs::OpenOptions::new().create(true).append(true).open(\"../ran\"); writeln!(f.unwrap(), \"built\").unwrap(); }' > build.rs
cargo run -q",
        targets: &["index.crates.io:443", "static.crates.io:443"],
        fetched: &[("index.crates.io", "/de/mo/demo"), ("static.crates.io", "/crates/demo/1.0.0/download")],
        once: Some("ran"),
        ends: (0, "demo from crates"),
    },
    Work {
        name: "late-npm",
        key: "o",
        late: LATE,
        script: "npm install --no-audit --no-fund --no-update-notifier --loglevel=error \
                 --cafile=/etc/ssl/certs/ca-certificates.crt demo && node -e 'console.log(require(\"demo\"))'",
        targets: &["registry.npmjs.org:443"],
        fetched: &[("registry.npmjs.org", "/demo"), ("registry.npmjs.org", "/demo/-/demo-1.0.0.tgz")],
        once: Some("installed"),
        ends: (0, "demo from npm"),
    },
];

/// Each work for each user.
pub fn tasks() -> Vec<Task> {
    let task = |work: &'static Work, user: TestUser| {
        let mut task = Task::new(format!("{}/{}", work.name, user.word()), move |lab| play(work, user, lab));
        task.is_slow = true;
        task.turn = Turn::One(work.name.to_owned());
        task
    };
    WORKS.iter().flat_map(|work| TestUser::available_users().into_iter().map(move |user| task(work, user))).collect()
}

/// What became of it.
struct RunReport {
    code: i32,
    text: String,
    questions: usize,
    outcome: Value,
    sight: Sight,
}

impl RunReport {
    fn story(&self) -> String {
        format!("{}\n{}\nthe lab saw: {}", self.text, self.outcome, self.sight)
    }
}

/// Runs it at a terminal and answers every question, the first one late.
fn answered(work: &Work, user: TestUser, lab: &Lab) -> Result<(World, RunReport)> {
    let world = World::new(user);
    let text = lab.text(&format!("{}{}\n", include_str!("trust.sh"), work.script));
    let script = world.file("ws/work.sh", &text).display().to_string();
    let workspace = world.workspace().display().to_string();
    let report = world.home().join("outcome.json");
    let (program, json) = (binary(), format!("--json={}", report.display()));
    let command = world.bare(&[&program, "run", "--workspace", &workspace, &json, "--", "/bin/bash", &script]);
    let mark = lab.mark()?;
    let mut terminal = Terminal::start(&world, &command);
    let mut questions = 0;
    while terminal.sees_before_its_end("allow?", TIMEOUT) {
        if questions == 0 {
            thread::sleep(work.late);
        }
        terminal.press(work.key);
        questions += 1;
        ensure!(questions <= QUESTIONS_MAX, "it asks without end:\n{}", terminal.text);
    }
    let (code, text) = terminal.finish();
    let outcome = fs::read_to_string(&report).with_context(|| format!("no outcome:\n{text}"))?;
    let result =
        RunReport { code, text, questions, outcome: serde_json::from_str(&outcome)?, sight: lab.sight_from(mark)? };
    Ok((world, result))
}

fn play(work: &Work, user: TestUser, lab: &Lab) -> Result<()> {
    let (world, result) = answered(work, user, lab)?;
    let (code, proof) = work.ends;
    ensure!(result.code == code, "it ended with {}: {}", result.code, result.story());
    ensure!(result.text.contains(proof), "it does not print `{proof}`: {}", result.story());
    ensure!(result.questions > 0, "nobody was asked: {}", result.story());
    // A yes that comes late is no failure to the program.
    ensure!(work.key != "o" || !result.text.contains("Retrying"), "it tried again: {}", result.story());
    ensure!(result.outcome["attempts"].as_array().is_some_and(|a| a.len() == 1), "it ran again: {}", result.story());
    let waited = result.outcome["approvals"][0]["waited_ms"].as_u64().unwrap_or_default();
    ensure!(u128::from(waited) >= work.late.as_millis(), "the answer came after {waited} ms: {}", result.story());
    ensure!(result.sight.reached_any(work.targets) == (work.key == "o"), "{}", result.story());
    for (host, path) in work.fetched {
        let count = result.sight.count(host, path);
        ensure!(count == 1, "{host}{path} was fetched {count} times: {}", result.story());
    }
    if let Some(once) = work.once {
        let lines = fs::read_to_string(world.workspace().join(once)).map(|text| text.lines().count());
        ensure!(lines.as_ref().is_ok_and(|n| *n == 1), "executed {lines:?} times: {}", result.story());
    }
    on_record(work, &result)
}

/// Each connection was asked about once, and the record has the answer.
fn on_record(work: &Work, result: &RunReport) -> Result<()> {
    let denials = result.outcome["attempts"][0]["denials"].as_array();
    let connects = denials.into_iter().flatten().filter(|denial| denial["operation"] == "connect");
    let mut objects: Vec<&str> = connects.clone().filter_map(|denial| denial["object"].as_str()).collect();
    objects.sort_unstable();
    let mut expected_targets = work.targets.to_vec();
    expected_targets.sort_unstable();
    ensure!(objects == expected_targets, "asked about {objects:?}: {}", result.story());
    let resolution = if work.key == "o" { "granted" } else { "refused" };
    for denial in connects {
        let object = denial["object"].as_str().unwrap_or_default();
        let is_exact = denial["grant"] == format!("connect {object}") && denial["resolution"] == resolution;
        ensure!(is_exact, "the record of {object} is not exact: {}", result.story());
    }
    Ok(())
}
