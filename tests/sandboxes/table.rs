//! What each kind declares as not to be had, as it was committed: a kind that declares
//! something more fails until somebody agrees (`STOCKADE_BLESS=1`). What a machine has
//! that another has not is no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use stockade_testkit::suite::SuiteTally;

/// The kinds, each for a user, that declare a case away; by the case.
type Table = BTreeMap<String, BTreeSet<String>>;

const COMMITTED: &str = include_str!("declared.txt");

/// Counts as failed what was declared and is not in the table; or writes the table anew,
/// as far as it is about these tasks.
pub fn settle(tally: &mut SuiteTally, played: &BTreeSet<String>) -> Result<()> {
    let mut table = parse(COMMITTED)?;
    if std::env::var_os("STOCKADE_BLESS").is_some() {
        renew(&mut table, tally, played)?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sandboxes/declared.txt");
        return fs::write(&path, shown(&table)).with_context(|| format!("writing {}", path.display()));
    }
    let declared = std::mem::take(&mut tally.declared);
    for (task, how) in declared {
        let (case, variant) = parts(&task)?;
        if table.get(case).is_some_and(|known| known.contains(variant)) {
            tally.declared.push((task, how));
        } else {
            let what = format!("newly declared as not to be had, which nobody agreed to (STOCKADE_BLESS=1): {how}");
            tally.failed.push((task, what));
        }
    }
    Ok(())
}

fn renew(table: &mut Table, tally: &SuiteTally, played: &BTreeSet<String>) -> Result<()> {
    let declared: BTreeSet<&String> = tally.declared.iter().map(|(task, _)| task).collect();
    let undecided = |task: &String| {
        tally.failed.iter().any(|(failed, _)| failed == task) || tally.not_run.iter().any(|one| one.task == *task)
    };
    for task in played.iter().filter(|task| !undecided(task)) {
        let (case, variant) = parts(task)?;
        let known = table.entry(case.to_owned()).or_default();
        if declared.contains(task) {
            known.insert(variant.to_owned())
        } else {
            known.remove(variant)
        };
    }
    table.retain(|_, variant| !variant.is_empty());
    Ok(())
}

/// `AREA/CASE/KIND/USER`, parted in the middle.
fn parts(task: &str) -> Result<(&str, &str)> {
    let middle = task.match_indices('/').nth(1).with_context(|| format!("no task: {task}"))?.0;
    Ok((&task[..middle], &task[middle + 1..]))
}

fn parse(text: &str) -> Result<Table> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let of_line = |line: &str| {
        let (case, variant) = line.split_once(": ").with_context(|| format!("no line of the table: {line}"))?;
        Ok((case.to_owned(), variant.split(' ').map(str::to_owned).collect()))
    };
    lines.map(of_line).collect()
}

fn shown(table: &Table) -> String {
    let head = "# What kinds of sandboxes declare as not to be had: the case, and which kind for which user.\n\
                # Written by `STOCKADE_BLESS=1 cargo test -p stockade-tests --test sandboxes -- --all`.\n";
    let line = |(case, variant): (&String, &BTreeSet<String>)| {
        let variant: Vec<&str> = variant.iter().map(String::as_str).collect();
        format!("{case}: {}\n", variant.join(" "))
    };
    head.to_owned() + &table.iter().map(line).collect::<String>()
}
