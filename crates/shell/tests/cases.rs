//! The agreed table of command lines: no unsafe answer, and no fall below the
//! level reached. Set `STOCKADE_UPDATE_MISSES=1` to write the table of misses
//! anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data must fail")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod common;

use common::{TIME_BOUND, timed};
use stockade_model::{Assessment, Tier};
use stockade_shell::{CommandContext, assess_script};

/// Least part of the denied lines that is denied, in per mille.
const DENIED: usize = 1000;
/// Least part of the allowed lines that is allowed where the runner neutralises
/// repository configuration, in per mille.
const ALLOWED: usize = 1000;
/// Most lines to ask about that may be denied.
const DENIED_QUESTIONS: usize = 0;

struct Case {
    id: String,
    command: Vec<u8>,
    tier: Tier,
    category: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases")
}

fn decode(cell: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = cell;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let kind = rest.as_bytes()[at + 1];
        let digits = match kind {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            _ => 0,
        };
        let value = u32::from_str_radix(&rest[at + 2..at + 2 + digits], 16).unwrap_or(0);
        match kind {
            b'x' => out.push(value as u8),
            b'u' | b'U' => out.extend_from_slice(char::from_u32(value).unwrap().to_string().as_bytes()),
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b'\\' => out.push(b'\\'),
            _ => panic!("unknown escape in {cell}"),
        }
        rest = &rest[at + 2 + digits..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

fn tier(name: &str) -> Tier {
    match name {
        "allow" => Tier::Allow,
        "ask" => Tier::Ask,
        "deny" => Tier::Deny,
        other => panic!("unknown tier {other}"),
    }
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("commands.tsv")).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            Case { id: cells[0].into(), command: decode(cells[1]), tier: tier(cells[2]), category: cells[3].into() }
        })
        .collect()
}

fn context(sanitized: bool) -> CommandContext {
    context_at("/home/dev", "/home/dev/proj", sanitized)
}

fn context_at(home: &str, workspace: &str, sanitized: bool) -> CommandContext {
    CommandContext { cwd: workspace.into(), home: home.into(), workspace: workspace.into(), sanitized }
}

struct Figures {
    unsafe_allows: Vec<String>,
    /// Hits and total, by agreed tier.
    hits: [(usize, usize); 3],
    denied_questions: usize,
    allowed_but_denied: usize,
    misses: String,
    slowest: (String, Duration),
}

/// The better of two runs: the other one may have met a cold cache.
fn assess_timed(command: &[u8], context: &CommandContext) -> (Assessment, Duration) {
    let run = || timed(|| assess_script(command, context));
    let (first, second) = (run(), run());
    if first.1 <= second.1 { first } else { second }
}

fn measure(sanitized: bool) -> Figures {
    let context = context(sanitized);
    let mut figures = Figures {
        unsafe_allows: Vec::new(),
        hits: [(0, 0); 3],
        denied_questions: 0,
        allowed_but_denied: 0,
        misses: String::new(),
        slowest: (String::new(), Duration::ZERO),
    };
    for case in cases() {
        let (assessment, took) = assess_timed(&case.command, &context);
        if took > figures.slowest.1 {
            figures.slowest = (case.id.clone(), took);
        }
        let slot = &mut figures.hits[case.tier as usize];
        slot.1 += 1;
        if assessment.tier == case.tier {
            slot.0 += 1;
            continue;
        }
        if assessment.tier == Tier::Allow {
            figures.unsafe_allows.push(case.id.clone());
        }
        if assessment.tier == Tier::Deny {
            figures.denied_questions += usize::from(case.tier == Tier::Ask);
            figures.allowed_but_denied += usize::from(case.tier == Tier::Allow);
        }
        let codes: Vec<&str> =
            assessment.findings.iter().filter(|f| f.tier == assessment.tier).map(|f| f.code.as_str()).collect();
        let _ = writeln!(
            figures.misses,
            "| {} | {} | {:?} | {:?} | {} |",
            case.id,
            case.category,
            case.tier,
            assessment.tier,
            codes.join(", ")
        );
    }
    figures
}

#[test]
fn the_agreed_tiers_hold() {
    let plain = measure(false);
    let figures = measure(true);
    for (name, f) in [("not neutralised", &plain), ("neutralised", &figures)] {
        println!(
            "{name}: allow {:?}, ask {:?}, deny {:?}; unsafe {:?}; ask answered deny {}; allow answered deny {}; slowest {:?}",
            f.hits[0], f.hits[1], f.hits[2], f.unsafe_allows, f.denied_questions, f.allowed_but_denied, f.slowest
        );
        assert!(f.unsafe_allows.is_empty(), "answered allow: {:?}", f.unsafe_allows);
        assert_eq!(f.allowed_but_denied, 0);
        assert!(f.hits[2].0 * 1000 >= DENIED * f.hits[2].1, "fewer denials than reached before");
        assert!(
            f.denied_questions.saturating_sub(DENIED_QUESTIONS) == 0,
            "more lines to ask about are denied than before"
        );
        assert!(f.slowest.1 <= TIME_BOUND, "a line took {:?}", f.slowest);
    }
    assert!(figures.hits[0].0 * 1000 >= ALLOWED * figures.hits[0].1, "fewer allowed lines than reached before");
    check_misses(&figures.misses);
}

/// A line of `further.tsv`.
struct Further {
    command: String,
    tier: Tier,
    /// What is answered, where that differs, and why.
    answered: Option<(Tier, String)>,
}

fn further() -> Vec<Further> {
    let text = std::fs::read_to_string(folder().join("further.tsv")).unwrap();
    let line = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let answered = (!cells[2].is_empty()).then(|| (tier(cells[2]), cells[3].to_owned()));
        Further { command: cells[0].to_owned(), tier: tier(cells[1]), answered }
    };
    text.lines().skip(1).map(line).collect()
}

/// Further lines, labelled by the same conventions before they were first tried:
/// a line whose answer differs names the answer and the reason.
#[test]
fn further_lines_have_the_agreed_tier() {
    let context = context(true);
    let mut faults = Vec::new();
    let mut hits = [(0, 0); 3];
    for line in further() {
        let answered = line.answered.as_ref().map_or(line.tier, |(tier, _)| *tier);
        assert!(answered != Tier::Allow || line.tier == Tier::Allow, "never agreed to: {}", line.command);
        let found_tier = assess_script(&decode(&line.command), &context).tier;
        let slot = &mut hits[line.tier as usize];
        slot.1 += 1;
        slot.0 += usize::from(found_tier == line.tier);
        if found_tier != answered {
            faults.push(format!("{} is {:?}, answered {found_tier:?}", line.command, line.tier));
        }
    }
    println!("further lines: allow {:?}, ask {:?}, deny {:?}", hits[0], hits[1], hits[2]);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Lines of `further.tsv` whose answer differs, as rows of a table.
fn further_misses() -> String {
    let mut rows = String::new();
    for line in further() {
        let Some((answered, why)) = line.answered else { continue };
        assert!(!why.is_empty(), "a miss without a reason: {}", line.command);
        let command = line.command.replace('|', "\\|");
        let _ = writeln!(rows, "| `{command}` | {:?} | {answered:?} | {why} |", line.tier);
    }
    rows
}

fn check_misses(rows: &str) {
    let text = format!(
        "# Where the classifier differs from the agreed tier\n\nWith sanitized repository configuration. Written by the test `cases` of the\ncrate `stockade-shell`; see there.\n\n| case of `commands.tsv` | category | agreed | answered | because |\n|---|---|---|---|---|\n{rows}\n| line of `further.tsv` | agreed | answered | because |\n|---|---|---|---|\n{}",
        further_misses()
    );
    let path = folder().join("misses.md");
    if std::env::var_os("STOCKADE_UPDATE_MISSES").is_some() {
        std::fs::write(&path, text).unwrap();
    } else {
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "tests/cases/misses.md is stale\nhint: run this test with STOCKADE_UPDATE_MISSES=1");
    }
}

/// Where a home and a workspace may lie.
const CONTEXT_PATHS: &[(&str, &str)] = &[
    ("/root", "/root/proj"),
    ("/root", "/root/work/a/proj"),
    ("/root", "/srv/proj"),
    ("/root", "/workspace"),
    ("/root", "/tmp/proj"),
    ("/home/dev", "/root/proj"),
    ("/home/dev", "/srv/www/proj"),
    ("/home/dev", "/opt/proj"),
    ("/home/dev", "/var/lib/ci/proj"),
    ("/home/dev", "/usr/src/app"),
    ("/home/dev", "/var/log/proj"),
    ("/home/dev", "/mnt/data/proj"),
    ("/home/dev", "/home/dev/code/proj"),
    ("/home/dev", "/tmp/proj"),
    ("/tmp/h", "/tmp/h/proj"),
    ("/tmp/h", "/srv/proj"),
    ("/srv/people/ann", "/srv/people/ann/proj"),
    ("/var/lib/ci", "/var/lib/ci/proj"),
];

#[test]
fn the_tier_does_not_depend_on_where_the_workspace_lies() {
    let usual = context(true);
    let contexts: Vec<CommandContext> =
        CONTEXT_PATHS.iter().map(|(home, workspace)| context_at(home, workspace, true)).collect();
    let mut differ = String::new();
    for case in cases() {
        let text = String::from_utf8_lossy(&case.command);
        // What names a place beside the workspace names another one there.
        if ["..", "/home/", "/root", "/tmp", "OLDPWD"].iter().any(|name| text.contains(name)) {
            continue;
        }
        let expected = assess_script(&case.command, &usual).tier;
        for ((home, workspace), place) in CONTEXT_PATHS.iter().zip(&contexts) {
            let actual = assess_script(&case.command, place).tier;
            if expected != actual {
                let _ = writeln!(differ, "{workspace} {home} {} {expected:?} {actual:?} {text:.60?}", case.id);
            }
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{differ}", differ.lines().count());
}

/// What lies beside a workspace is a person's, wherever that is; the system is not.
#[test]
fn siblings_of_the_workspace_are_no_part_of_the_system() {
    for workspace in ["/home/dev/proj", "/srv/app", "/opt/work/app", "/var/www/site"] {
        let tier_of = |text: &str| assess_script(text.as_bytes(), &context_at("/home/dev", workspace, true)).tier;
        for text in ["cp -r src ../backup/", "mv x ../moved", "mkdir ../new && echo x >../new/x"] {
            assert_eq!(tier_of(text), tier_at_home(text), "{text} in {workspace}");
        }
        for text in ["cp x /usr/bin/x", "echo x >/etc/hosts", "rm -rf /opt", "rm -rf /srv", "rm -rf /var/www"] {
            assert_eq!(tier_of(text), Tier::Deny, "{text} in {workspace}");
        }
    }
    fn tier_at_home(text: &str) -> Tier {
        assess_script(text.as_bytes(), &context(true)).tier
    }
}
