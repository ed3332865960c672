//! The house rules as tests: the crate graph holds to the table of
//! ARCHITECTURE.md, functions and files stay small, `unsafe` stays in `sys`,
//! modules use one another in listed cycles only, the lock file stays short, and the documentation
//! holds together.

mod documents;
mod module_cycles;
mod walks;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stockade_tests::cross_section::{Turn, Wanted};

/// Each crate and the crates of ours it may use. An edge not here fails.
const ALLOWED_EDGES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("effects", &["model"]),
    ("shell", &["model", "effects"]),
    ("policy", &["model"]),
    ("sys", &[]),
    ("files", &["model", "sys"]),
    ("signing", &["model"]),
    ("permissions", &["model", "effects", "sys", "files"]),
    ("stage", &["model", "permissions", "sys", "files"]),
    ("limits", &["model", "sys"]),
    ("launch", &["model", "limits", "sys", "files"]),
    (
        "native",
        &[
            "model",
            "backend-api",
            "supervisor",
            "permissions",
            "stage",
            "limits",
            "launch",
            "sys",
            "files",
            "egress",
            "signing",
        ],
    ),
    ("egress", &["model", "sys"]),
    ("container", &["model", "backend-api", "permissions", "launch", "egress", "native", "sys"]),
    ("audit", &["model", "files"]),
    ("store", &["model", "files"]),
    ("backend-api", &["model"]),
    ("supervisor", &["model", "backend-api", "sys"]),
    ("engine", &["model", "backend-api", "policy", "shell", "audit", "store"]),
    ("lifecycle", &["model", "backend-api", "store", "files"]),
    ("exchange", &["model"]),
    ("review", &["model", "backend-api", "exchange"]),
    (
        "cli",
        &[
            "model",
            "policy",
            "shell",
            "audit",
            "store",
            "backend-api",
            "supervisor",
            "engine",
            "native",
            "launch",
            "permissions",
            "stage",
            "sys",
            "files",
            "lifecycle",
            "egress",
            "exchange",
            "review",
            "container",
            "signing",
        ],
    ),
    ("testkit", &["model", "policy", "shell", "audit", "store", "engine", "native", "sys"]),
];

/// Longest function body that needs no reason beside it.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Longest lock file, in packages.
const LOCKED_PACKAGES_MAX: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Library and binary sources: no tests, no benches.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap) {
        rust_files(&entry.path().join("src"), &mut found);
    }
    assert!(found.len() > 10, "the sources were not found");
    found
}

/// The lines of a file before its test module.
fn product_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let end = lines.iter().position(|l| *l == "#[cfg(test)]").unwrap_or(lines.len());
    lines[..end].to_vec()
}

#[test]
fn the_crate_graph_holds_to_the_table() {
    let table: BTreeMap<&str, BTreeSet<&str>> =
        ALLOWED_EDGES.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    for entry in fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let allowed = table.get(name.as_str()).unwrap_or_else(|| panic!("crate `{name}` is not in the table"));
        let manifest: toml::Table = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap().parse().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some(format!("stockade-{name}").as_str()));
        for dependency in manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flatten() {
            if let Some(used) = dependency.0.strip_prefix("stockade-") {
                assert!(allowed.contains(used), "crate `{name}` may not use `{used}`");
            }
        }
    }
}

#[test]
fn unsafe_stays_in_sys() {
    for entry in fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap) {
        let source = entry.path().join("src");
        if entry.file_name() == "sys" {
            continue;
        }
        let top = ["lib.rs", "main.rs"].iter().map(|f| source.join(f)).find(|p| p.exists()).unwrap();
        let text = fs::read_to_string(&top).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{} must forbid unsafe code", top.display());
    }
}

/// First line and length of each function longer than the limit that gives no
/// reason (`// Long because ...` in the lines before or at its start).
fn long_functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim_start();
        let code = text.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let code = code.trim_start_matches("const ").trim_start_matches("unsafe ").trim_start_matches("extern \"C\" ");
        if open.is_none() && code.starts_with("fn ") && !text.ends_with(';') {
            open = Some((at, indent));
        }
        if let Some((start, indent_start)) = open
            && indent == indent_start
            && (text == "}" || (at == start && text.ends_with('}')))
        {
            let length = at - start + 1;
            let reasoned =
                lines[start.saturating_sub(6)..(start + 3).min(lines.len())].iter().any(|l| l.contains("Long because"));
            if length > FUNCTION_LINES_MAX && !reasoned {
                found.push((start + 1, length));
            }
            open = None;
        }
    }
    found
}

#[test]
fn functions_and_files_can_be_seen_at_once() {
    let mut faults = Vec::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let shown = path.strip_prefix(root()).unwrap().display().to_string();
        let lines = product_lines(&text);
        if lines.len() > FILE_LINES_MAX {
            faults.push(format!("{shown}: {} lines, at most {FILE_LINES_MAX}", lines.len()));
        }
        for (line, length) in long_functions(&lines) {
            faults.push(format!("{shown}:{line}: a function of {length} lines, at most {FUNCTION_LINES_MAX}"));
        }
        if !text.starts_with("//!") {
            faults.push(format!("{shown}: no module documentation"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn long_functions_are_found() {
    let body: Vec<String> = std::iter::once("    pub fn long() {".to_owned())
        .chain((0..FUNCTION_LINES_MAX).map(|n| format!("        let _ = {n};")))
        .chain(["    }".to_owned(), "    fn short() {}".to_owned()])
        .collect();
    let lines: Vec<&str> = body.iter().map(String::as_str).collect();
    assert_eq!(long_functions(&lines), [(1, FUNCTION_LINES_MAX + 2)]);
}

#[test]
fn the_lock_file_stays_short() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages = lock.lines().filter(|l| *l == "[[package]]").count();
    assert!((20..=LOCKED_PACKAGES_MAX).contains(&packages), "{packages} packages");
}

#[test]
fn the_project_names_no_machine() {
    let mut faults = Vec::new();
    let mut files = Vec::new();
    for dir in ["crates", "tests", "xtask", "docs", "book", "policies", "bench", ".ci"] {
        text_files(&root().join(dir), &mut files);
    }
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        // Written in two halves so that this file does not hold them.
        for word in [concat!("/work", "/main"), concat!("/work", "/shared"), concat!("shared", "/cases")] {
            if text.contains(word) {
                faults.push(format!("{} names {word}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A test that is renamed must not stay on the list of `./test` under its old name.
#[test]
fn tests_that_take_long_exist() {
    let mut files = Vec::new();
    ["crates", "tests"].iter().for_each(|dir| text_files(&root().join(dir), &mut files));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let all: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let list = fs::read_to_string(root().join("tests/long.txt")).unwrap();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (mark, name) = line.split_once(' ').unwrap();
        assert!(["long", "quick"].contains(&mark), "{line}");
        let function = format!("fn {}", name.rsplit("::").next().unwrap());
        assert!(all.contains(&function), "tests/long.txt: no test is named {name}");
    }
}

fn text_files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            text_files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// Tasks of as many rows in ways of two users and two levels.
fn rows_in_ways(rows: usize) -> Vec<(String, usize)> {
    (0..rows).flat_map(|row| (0..4).map(move |way| (format!("row-{row}"), way))).collect()
}

#[test]
fn a_cross_section_plays_each_row_once_and_each_way_as_often() {
    let turn = |task: &(String, usize)| Turn::One(task.0.clone());
    let parse_selection = |words: &[&str]| Wanted::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let played = parse_selection(&[]).narrowed(rows_in_ways(400), turn);
    let rows: BTreeSet<&String> = played.iter().map(|(row, _)| row).collect();
    assert_eq!((played.len(), rows.len()), (400, 400));
    for way in 0..4 {
        let count = played.iter().filter(|task| task.1 == way).count();
        assert!((75..=125).contains(&count), "{count} of 400 rows in way {way}");
    }
    assert_eq!(parse_selection(&[]).narrowed(rows_in_ways(400), turn), played, "it changes from run to run");
    let rare = parse_selection(&[]).narrowed(rows_in_ways(400), |task| Turn::Rarely(task.0.clone(), 2));
    assert!((160..=240).contains(&rare.len()), "{} of 400 rows, which was to be half", rare.len());
    for words in [&["--all"][..], &["row-7", "--list"]] {
        assert_eq!(parse_selection(words).narrowed(rows_in_ways(9), turn).len(), 36, "{words:?}");
    }
    assert!(parse_selection(&["--all"]).names("row/root/full") && parse_selection(&["x,row/"]).names("row/root/full"));
    assert!(!parse_selection(&["other"]).names("row/root/full"));
    let each = |task: &(String, usize)| Turn::Each(task.0.clone());
    assert_eq!(parse_selection(&[]).narrowed(rows_in_ways(9), each).len(), 36);
    assert_eq!(parse_selection(&["--share=3"]).narrowed(rows_in_ways(400), each).len(), 400, "each row once");
    let own = |task: &(String, usize)| Turn::Rarely(format!("{}/{}", task.0, task.1), 1);
    assert_eq!(parse_selection(&[]).narrowed(rows_in_ways(9), own).len(), 36);
    let third = parse_selection(&["--share=3"]).narrowed(rows_in_ways(300), own).len();
    assert!((340..=460).contains(&third), "{third} of 1200 tasks, which was to be a third");
    let quarter = parse_selection(&["--rows=4"]).narrowed(rows_in_ways(400), each).len();
    assert!((70..=130).contains(&quarter), "{quarter} of 400 rows, which was to be a quarter");
    let smaller = parse_selection(&["--share=3", "--rows=4"]);
    assert_eq!(Wanted::of(&smaller.words()), smaller);
}
