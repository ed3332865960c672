//! Reads the table of cases. It must not know how a case is judged.

use anyhow::{Result, bail};

/// How an attempt is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text for bash.
    Shell,
    /// Text for Python.
    Python,
    /// A program from `tests/probes`, named like the case.
    Program,
    /// Bytes sent by hand, described.
    Client,
    /// Steps outside the sandbox.
    Harness,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Case {
    /// `esc-0002`
    pub id: String,
    /// How it is written.
    pub kind: Kind,
    /// `read-only`, `workspace`, or `proxy`: the workspace and one host.
    pub profile: &'static str,
    /// What the attacker wants.
    pub goal: String,
    /// The text to run, or a description of it.
    pub probe: String,
}

/// All rows of a table.
pub fn load(table: &str) -> Result<Vec<Case>> {
    table.lines().filter(|line| !line.starts_with('#') && !line.starts_with("id\t")).map(parse).collect()
}

fn parse(line: &str) -> Result<Case> {
    let cells: Vec<String> = line.split('\t').map(decode).collect();
    let [id, _area, kind, profile, goal, probe, ..] = cells.as_slice() else { bail!("too few cells: {line}") };
    let kind = match kind.as_str() {
        "sh" => Kind::Shell,
        "py" => Kind::Python,
        "c" => Kind::Program,
        "client" => Kind::Client,
        "harness" => Kind::Harness,
        other => bail!("{id}: unknown kind {other}"),
    };
    let profile = match profile.as_str() {
        "ro" => "read-only",
        "ws" => "workspace",
        "proxy" => "proxy",
        other => bail!("{id}: unknown profile {other}"),
    };
    Ok(Case { id: id.clone(), kind, profile, goal: goal.clone(), probe: probe.clone() })
}

/// The cell with its C-style escapes decoded, once, left to right.
fn decode(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match rest.next() {
            Some('t') => text.push('\t'),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some(other) => text.push(other),
            None => text.push('\\'),
        }
    }
    text
}
