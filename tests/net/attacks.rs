//! Attacks on the door, and past it: every row of `tests/cases/network.tsv` and
//! rows of our own. Whatever a server sees that nobody agreed to is a breach;
//! without the sandbox the same text must be one.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use stockade_testkit::TestUser;
use stockade_tests::Level;
use stockade_tests::cross_section::of_native_row;

use crate::cases::{self, Case, Kind};
use crate::contained;
use crate::lab::{Lab, Powers, Script, Seen};
use crate::rows;
use crate::task::{Task, control_task, strongest};

/// What shows that the judgement can fail.
#[derive(Clone, Copy)]
pub enum Control {
    /// The same text without the sandbox.
    Same,
    /// The same text as root, without the sandbox.
    SameAsRoot,
    /// Another text without the sandbox.
    Text(&'static str),
    /// There can be none, for this reason.
    None(&'static str),
}

/// A function that is a row of its own; `None` is its control.
pub type Special = fn(&Lab, Option<(TestUser, Level)>) -> Result<()>;

/// One row.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Of the case, or a name of our own.
    pub id: &'static str,
    /// For bash, instead of the case's.
    pub text: &'static str,
    /// What is granted, beyond profile `workspace`.
    pub grants: &'static [&'static str],
    /// The user's configuration.
    pub config: &'static str,
    /// What the servers may see: targets.
    pub agreed: &'static [&'static str],
    /// What must work inside after all of that, so that silence is not mistaken
    /// for safety: an address for curl.
    pub works: Option<&'static str>,
    /// Programs are told of the door's proxies; of a naive one in the control.
    pub with_proxies: bool,
    /// What is judged besides what the servers saw.
    pub check_result: fn(&Seen) -> Vec<String>,
    pub control: Control,
    /// How many breaches the control shows at least, where a row has many forms.
    pub least: usize,
    /// Why level `restricted` does not promise it.
    pub full_only: Option<&'static str>,
    /// Instead of all that.
    pub special: Option<Special>,
}

/// A row of profile `workspace`: nothing is granted.
pub const WORKSPACE: Attack = Attack {
    id: "",
    text: "",
    grants: &[],
    config: "",
    agreed: &[],
    works: None,
    with_proxies: false,
    check_result: |_| Vec::new(),
    control: Control::Same,
    least: 1,
    full_only: None,
    special: None,
};

/// A row with one host granted.
pub const PROXY: Attack = Attack {
    grants: &["connect allowed.test:80", "connect allowed.test:443"],
    agreed: &["allowed.test:80", "allowed.test:443"],
    works: Some("http://allowed.test/works"),
    with_proxies: true,
    ..WORKSPACE
};

/// A breach for each line of the output that begins so.
pub fn refuse_line(seen: &Seen, start: &str) -> Vec<String> {
    seen.output.stdout.lines().filter(|line| line.starts_with(start)).map(|line| format!("printed: {line}")).collect()
}

/// The tasks of all rows.
pub fn tasks() -> Result<Vec<Task>> {
    let cases = cases::load(include_str!("../cases/network.tsv"))?;
    check_completeness(&cases)?;
    let tasks = |attack: &'static Attack| {
        let case = cases.iter().find(|case| case.id == attack.id).cloned();
        tasks_of(attack, case)
    };
    let of_case = |attack: &Attack| text_of(attack, cases.iter().find(|case| case.id == attack.id));
    Ok(rows::ROWS.iter().flat_map(tasks).chain(contained::tasks(rows::ROWS, of_case)).collect())
}

/// Every case is a row, once.
fn check_completeness(cases: &[Case]) -> Result<()> {
    let count = |id: &str| rows::ROWS.iter().filter(|row| row.id == id).count();
    let mut faults: Vec<String> =
        cases.iter().filter(|case| count(&case.id) != 1).map(|c| format!("{}: {} rows", c.id, count(&c.id))).collect();
    for row in rows::ROWS {
        let case = cases.iter().find(|case| case.id == row.id);
        let has_text = !row.text.is_empty() || row.special.is_some();
        let is_text = |case: &Case| matches!(case.kind, Kind::Shell | Kind::Python);
        if !has_text && !case.is_some_and(is_text) {
            faults.push(format!("{}: neither text nor function", row.id));
        }
        if row.id.starts_with("esc-") && case.is_none() {
            faults.push(format!("{}: no such case", row.id));
        }
    }
    if !faults.is_empty() {
        bail!("the suite is incomplete:\n{}", faults.join("\n"));
    }
    Ok(())
}

fn tasks_of(attack: &'static Attack, case: Option<Case>) -> Vec<Task> {
    let text = text_of(attack, case.as_ref());
    let own = text.clone();
    let mut control = control_task(attack.id, move |lab| control(attack, lab, &own));
    if let Control::None(why) = attack.control {
        control.not_here = Some(format!("no control: {why}"));
    }
    if matches!(attack.control, Control::SameAsRoot) && strongest() != TestUser::Root {
        control.not_here = Some("this control needs a root harness".to_owned());
    }
    let mut tasks = vec![control];
    for level in [Level::Full, Level::Restricted] {
        for user in TestUser::available_users() {
            let name = format!("{}/{}/{}", attack.id, user.word(), level.word());
            let own = text.clone();
            let mut task = Task::new(name, move |lab| contained(attack, lab, user, level, &own));
            task.turn = of_native_row(attack.id, level == Level::Full, false);
            if let (Some(why), Level::Restricted) = (attack.full_only, level) {
                task.not_here = Some(format!("not promised at this level: {why}"));
            }
            tasks.push(task);
        }
    }
    tasks
}

fn text_of(attack: &Attack, case: Option<&Case>) -> String {
    match case {
        _ if !attack.text.is_empty() => attack.text.to_owned(),
        Some(case) if case.kind == Kind::Python => format!("/usr/bin/python3 - <<'END'\n{}\nEND", case.probe),
        Some(case) => case.probe.clone(),
        None => String::new(),
    }
}

/// How a row is run.
pub fn script<'a>(attack: &Attack, text: &'a str) -> Script<'a> {
    let trusts_lab = !attack.config.contains("inspect");
    Script { with_proxies: attack.with_proxies, trusts_lab, timeout: Duration::from_secs(120), ..Script::new(text) }
}

/// What got through that nobody agreed to.
pub fn breaches(attack: &Attack, seen: &Seen) -> Vec<String> {
    let mut breaches = seen.sight.strangers(attack.agreed);
    breaches.extend((attack.check_result)(seen));
    breaches
}

fn control(attack: &Attack, lab: &Lab, own: &str) -> Result<()> {
    if let Some(special) = attack.special {
        return special(lab, None);
    }
    let text = match attack.control {
        Control::Text(text) => text,
        Control::Same | Control::SameAsRoot | Control::None(_) => own,
    };
    let seen = lab.bare(strongest(), &script(attack, text))?;
    let through = breaches(attack, &seen).len();
    ensure!(through >= attack.least, "only {through} get through without the sandbox: {}", seen.story());
    Ok(())
}

/// A row's text, and what shows that what is granted works after it.
pub fn with_proof(attack: &Attack, own: &str) -> String {
    let proof = attack.works.map(|address| format!("\ncurl -sSf -m 20 {address} > /dev/null && echo STILL-WORKS\n"));
    own.to_owned() + proof.as_deref().unwrap_or_default()
}

fn contained(attack: &Attack, lab: &Lab, user: TestUser, level: Level, own: &str) -> Result<()> {
    if let Some(special) = attack.special {
        return special(lab, Some((user, level)));
    }
    let mut text = String::new();
    if attack.with_proxies {
        text.push_str("[ -n \"$http_proxy\" ] && [ -n \"$all_proxy\" ] || echo NO-PROXIES\n");
    }
    text.push_str(&with_proof(attack, own));
    let powers = Powers { config: attack.config, ..Powers::of(level, attack.grants) };
    let seen = lab.sandboxed(user, powers, &script(attack, &text))?;
    let breaches = breaches(attack, &seen);
    ensure!(breaches.is_empty(), "breached:\n{}\n{}", breaches.join("\n"), seen.story());
    ensure!(!seen.output.stdout.contains("NO-PROXIES"), "no proxies are named inside: {}", seen.story());
    let works = attack.works.is_none() || seen.output.stdout.contains("STILL-WORKS");
    ensure!(works, "what is granted does not work: {}", seen.story());
    Ok(())
}
