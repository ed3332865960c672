//! A request that publishes is asked about although its host was granted, where it is seen: over
//! plain HTTP, and where traffic is looked into. Judged by what the hosts got.

use std::fs;

use anyhow::{Result, ensure};
use stockade_testkit::TestUser;
use stockade_tests::Level;
use stockade_tests::cross_section::Turn;

use crate::lab::Lab;
use crate::sight::Sight;
use crate::task::Task;
use crate::terminal::Terminal;
use crate::world::{World, binary};

const CONFIG: &str = "
[profiles.workspace.egress]
allow = ['allowed.test:80', 'api.test:443']
[profiles.workspace.egress.inspect]
hosts = ['api.test:443']
";

/// Each host is read from first, so that a failure is none of the way there.
const PUSH: &str = "
import urllib.error, urllib.request
for method, path in ('GET', '/v2/'), ('PUT', '/v2/a/manifests/latest'):
    for host in 'http://allowed.test', 'https://api.test':
        try:
            print(method, host, urllib.request.urlopen(urllib.request.Request(host + path, method=method)).status)
        except urllib.error.HTTPError as error:
            print(method, host, error.code, error.read().decode())
";

pub fn tasks() -> Vec<Task> {
    let plays: [(&str, &[&str], usize); 2] = [("yes", &["o", "o"], 2), ("no", &["n", "n"], 0)];
    let levels = [Level::Full, Level::Restricted];
    let each = |user: TestUser| {
        plays.into_iter().flat_map(move |(name, keys, arrive)| {
            levels.into_iter().map(move |level| {
                let id = format!("effects-asked-{name}/{}/{}", user.word(), level.word());
                let task = Task::new(id, move |lab| play_questions(lab, (user, level), keys, arrive));
                Task { turn: Turn::One(format!("effects-asked-{name}")), ..task }
            })
        })
    };
    TestUser::available_users().into_iter().flat_map(each).collect()
}

fn count(sight: &Sight, method: &str) -> usize {
    sight.requests().filter(|request| request["method"] == method).count()
}

/// Each host is a question of its own.
fn play_questions(lab: &Lab, (user, level): (TestUser, Level), keys: &[&str], arrive: usize) -> Result<()> {
    let world = World::new(user);
    world.dir("home/.config");
    world.dir("home/.config/stockade");
    world.file("home/.config/stockade/config.toml", CONFIG);
    world.file("ws/push.py", &lab.text(PUSH));
    let workspace = world.workspace().display().to_string();
    let report = world.home().join("outcome.json");
    let (program, json) = (binary(), format!("--json={}", report.display()));
    let options = ["--workspace", &workspace, "--level", level.word(), &json];
    let run = [&[program.as_str(), "run"][..], &options, &["--", "/usr/bin/python3", "push.py"]].concat();
    let mark = lab.mark()?;
    let mut terminal = Terminal::start(&world, &world.bare(&run));
    for (key, host) in keys.iter().zip(["http://allowed.test:80", "https://api.test:443"]) {
        terminal.expect(&format!("wants to send PUT {host}/v2/a/manifests/latest"));
        terminal.expect("allow?");
        terminal.press(key);
    }
    let (_, text) = terminal.finish();
    let (sight, outcome) = (lab.sight_from(mark)?, fs::read_to_string(&report)?);
    let story = || format!("{text}\n{outcome}\nthe lab saw: {sight}");
    ensure!(count(&sight, "GET") == 2, "a host was not reached: {}", story());
    ensure!(count(&sight, "PUT") == arrive, "what arrived is not {arrive}: {}", story());
    ensure!(text.matches("wants to send").count() == keys.len(), "it was asked about again: {}", story());
    Ok(())
}
