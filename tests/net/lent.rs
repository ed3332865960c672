//! A secret on its way to a host that it is not bound to: refused with the grant
//! that would do, taken there with that grant, and asked about while the request
//! waits. Judged by what the host got.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stockade_testkit::TestUser;
use stockade_tests::Level;
use stockade_tests::cross_section::Turn;

use crate::lab::{Lab, Powers, Script};
use crate::sight::Sight;
use crate::task::Task;
use crate::terminal::Terminal;
use crate::world::{World, binary};

const TOKEN: &str = "ghp_LentLabToken0123456789abcdefghABCDEF";
const ENV: &[(&str, &str)] = &[("GITHUB_TOKEN", TOKEN)];
const GRANT: &str = "secret github to api.test:443";

const CONFIG: &str = "
[profiles.workspace.egress]
allow = ['github.test:443', 'api.test:443']
[profiles.workspace.egress.secrets]
github = { from = 'env GITHUB_TOKEN', hosts = ['github.test:443'], kind = 'bearer' }
";
/// Without this the traffic of a host that no secret is bound to is not read.
const LOOK: &str = "[profiles.workspace.egress.inspect]\nhosts = ['api.test:443']\n";

/// Once at its own host, so that a failure elsewhere is none of the way there.
const CARRY: &str = r#"
curl -sS -H "Authorization: Bearer $GITHUB_TOKEN" https://github.test/own
curl -sS -w 'CODE %{http_code}\n' -H "Authorization: Bearer $GITHUB_TOKEN" https://api.test/lent
echo "INSIDE $GITHUB_TOKEN"
"#;

/// Two at once, and one after them.
const THRICE: &str = r#"
for n in 1 2; do curl -sS -o answer$n -w 'CODE %{http_code}\n' -H "Authorization: Bearer $GITHUB_TOKEN" https://api.test/$n & done
wait
curl -sS -w 'CODE %{http_code}\n' -H "Authorization: Bearer $GITHUB_TOKEN" https://api.test/3
"#;

const IMPATIENT: &str = r#"
curl -sS -m 3 -H "Authorization: Bearer $GITHUB_TOKEN" https://api.test/1 || echo GAVE UP
sleep 3
"#;

type Play = fn(&Lab, TestUser) -> Result<()>;

pub fn tasks() -> Vec<Task> {
    let each = |user: TestUser| {
        let plays: [(&str, Play); 6] = [
            ("refused", refused),
            ("granted", granted),
            ("asked-yes", agreed),
            ("asked-no", declined),
            ("asked-in-vain", give_up_waiting),
            ("always", always),
        ];
        plays.map(|(name, play)| Task {
            turn: Turn::One(format!("secrets-lent-{name}")),
            ..Task::new(format!("secrets-lent-{name}/{}", user.word()), move |lab| play(lab, user))
        })
    };
    TestUser::available_users().into_iter().flat_map(each).collect()
}

fn script(text: &str) -> Script<'_> {
    Script { trusts_lab: false, ..Script::new(text) }
}

/// What the token's header was in each request to a host, in order of the paths.
fn bearers<'a>(sight: &'a Sight, host: &str) -> Vec<&'a str> {
    let of_host = sight.requests().filter(|request| request["host"] == host);
    let mut all: Vec<_> = of_host.map(|r| (&r["path"], r["headers"]["authorization"].as_str().unwrap_or(""))).collect();
    all.sort_unstable_by_key(|(path, _)| path.as_str());
    all.into_iter().map(|(_, value)| value).collect()
}

fn real() -> String {
    format!("Bearer {TOKEN}")
}

/// The denials about secrets.
fn about_secrets(attempt: &Value) -> Vec<&Value> {
    attempt["denials"].as_array().into_iter().flatten().filter(|denial| denial["operation"] == "secret").collect()
}

fn refused(lab: &Lab, user: TestUser) -> Result<()> {
    [Level::Full, Level::Restricted].into_iter().try_for_each(|level| refused_at(lab, user, level))
}

fn refused_at(lab: &Lab, user: TestUser, level: Level) -> Result<()> {
    let config = [CONFIG, LOOK].concat();
    let powers = Powers { config: &config, env: ENV, ..Powers::of(level, &[]) };
    let seen = lab.sandboxed(user, powers, &script(CARRY))?;
    ensure!(bearers(&seen.sight, "github.test") == [real()], "its own host did not get it: {}", seen.story());
    ensure!(bearers(&seen.sight, "api.test").is_empty(), "the request went on: {}", seen.story());
    let output_text = &seen.output.stdout;
    ensure!(
        output_text.contains("CODE 403") && output_text.contains(&format!("the grant `{GRANT}`")),
        "{}",
        seen.story()
    );
    let denials = about_secrets(seen.attempt());
    let is_exact = |denial: &Value| {
        denial["object"] == "api.test:443"
            && denial["grant"] == GRANT
            && denial["resolution"] == "recorded"
            && denial["program"].as_str().is_some_and(|program| program.ends_with("/curl"))
    };
    ensure!(denials.len() == 1 && is_exact(denials[0]), "the denial is not exact: {}", seen.story());
    ensure!(!seen.output.combined_text().contains(TOKEN), "its value is told: {}", seen.story());
    Ok(())
}

fn granted(lab: &Lab, user: TestUser) -> Result<()> {
    [Level::Full, Level::Restricted].into_iter().try_for_each(|level| granted_at(lab, user, level))
}

fn granted_at(lab: &Lab, user: TestUser, level: Level) -> Result<()> {
    let powers = Powers { config: CONFIG, env: ENV, ..Powers::of(level, &[GRANT]) };
    let seen = lab.sandboxed(user, powers, &script(CARRY))?;
    for host in ["github.test", "api.test"] {
        ensure!(bearers(&seen.sight, host) == [real()], "{host} did not get it: {}", seen.story());
    }
    ensure!(about_secrets(seen.attempt()).is_empty(), "{}", seen.story());
    ensure!(!seen.output.combined_text().contains(TOKEN), "it is inside: {}", seen.story());
    Ok(())
}

/// What became of a run at a terminal.
struct RunReport {
    code: i32,
    text: String,
    outcome: Value,
    sight: Sight,
    world: World,
}

impl RunReport {
    fn story(&self) -> String {
        format!("{}\n{}\nthe lab saw: {}", self.text, self.outcome, self.sight)
    }
}

/// Runs a script at a terminal: it asks about the secret once, and each prompt is
/// answered, late, with its key.
fn at_terminal(lab: &Lab, user: TestUser, script: &str, keys: &[(&str, &str)]) -> Result<RunReport> {
    let world = World::new(user);
    world.dir("home/.config");
    world.dir("home/.config/stockade");
    world.file("home/.config/stockade/config.toml", &[CONFIG, LOOK].concat());
    let file = world.file("ws/work.sh", &lab.text(script)).display().to_string();
    let workspace = world.workspace().display().to_string();
    let report = world.home().join("outcome.json");
    let (program, json) = (binary(), format!("--json={}", report.display()));
    let command = world.bare(&[&program, "run", "--workspace", &workspace, &json, "--", "/bin/bash", &file]);
    let mark = lab.mark()?;
    let mut terminal = Terminal::start(&world, &command.env("GITHUB_TOKEN", TOKEN));
    terminal.expect("curl wants to take a secret to api.test:443");
    terminal.expect(GRANT);
    for (prompt, key) in keys {
        terminal.expect(prompt);
        thread::sleep(Duration::from_secs(1));
        terminal.press(key);
    }
    let (code, text) = terminal.finish();
    let outcome = fs::read_to_string(&report).with_context(|| format!("no outcome:\n{text}"))?;
    let result =
        RunReport { code, text, outcome: serde_json::from_str(&outcome)?, sight: lab.sight_from(mark)?, world };
    ensure!(result.text.matches("wants to take a secret").count() == 1, "it was asked about again: {}", result.story());
    ensure!(!result.text.contains(TOKEN), "its value is told: {}", result.story());
    ensure!(result.outcome["attempts"].as_array().is_some_and(|a| a.len() == 1), "it ran again: {}", result.story());
    Ok(result)
}

/// The one denial, and what became of it.
fn is_settled(result: &RunReport, resolution: &str) -> bool {
    let denials = about_secrets(&result.outcome["attempts"][0]);
    denials.len() == 1 && denials[0]["grant"] == GRANT && denials[0]["resolution"] == resolution
}

fn agreed(lab: &Lab, user: TestUser) -> Result<()> {
    let result = at_terminal(lab, user, THRICE, &[("allow?", "o")])?;
    ensure!(bearers(&result.sight, "api.test") == vec![real(); 3], "what arrived is not three: {}", result.story());
    ensure!(result.code == 0 && is_settled(&result, "granted"), "{}", result.story());
    Ok(())
}

fn declined(lab: &Lab, user: TestUser) -> Result<()> {
    let result = at_terminal(lab, user, THRICE, &[("allow?", "n")])?;
    ensure!(bearers(&result.sight, "api.test").is_empty(), "a request went on: {}", result.story());
    ensure!(result.text.matches("CODE 403").count() == 3, "not each was told: {}", result.story());
    ensure!(is_settled(&result, "refused"), "{}", result.story());
    Ok(())
}

/// Who asked does not wait any more: nothing is left to answer, and nothing goes.
fn give_up_waiting(lab: &Lab, user: TestUser) -> Result<()> {
    let result = at_terminal(lab, user, IMPATIENT, &[("withdrawn: no process waits", "")])?;
    ensure!(bearers(&result.sight, "api.test").is_empty(), "a request went on: {}", result.story());
    ensure!(result.text.contains("GAVE UP") && result.code == 0, "{}", result.story());
    ensure!(is_settled(&result, "recorded"), "{}", result.story());
    Ok(())
}

/// A yes for always, written as the rule that was shown, holds for another run.
fn always(lab: &Lab, user: TestUser) -> Result<()> {
    let keys = [("allow?", "a"), ("grants = [\"secret github to api.test:443\"]", "w")];
    let result = at_terminal(lab, user, THRICE, &keys)?;
    ensure!(bearers(&result.sight, "api.test") == vec![real(); 3], "what arrived is not three: {}", result.story());
    let written = fs::read_to_string(result.world.home().join(".config/stockade/config.toml"))?;
    ensure!(written.starts_with(CONFIG) && written.contains("[[rules]]"), "{written}\n{}", result.story());
    let powers = Powers { config: &written, env: ENV, ..Powers::of(Level::Full, &[]) };
    let seen = lab.sandboxed(user, powers, &script(CARRY))?;
    ensure!(bearers(&seen.sight, "api.test") == [real()], "the rule does not hold: {}", seen.story());
    Ok(())
}
