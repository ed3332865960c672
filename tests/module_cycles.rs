//! The cycles among the top-level modules of each crate are those that ARCHITECTURE.md lists, each
//! with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{product_lines, root, rust_files};

/// Heading of the list in ARCHITECTURE.md.
const SECTION: &str = "## Module cycles that stay";

/// Names of modules, and of each the modules that it uses.
type ModuleUses = BTreeMap<String, BTreeSet<String>>;

/// The code of a file without its tests and without comments.
fn code_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    product_lines(&text).iter().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn first_word(text: &str) -> &str {
    text.split(|character| !is_word(character)).next().unwrap_or_default()
}

/// The first names of the paths in `text`, which follows `crate::` or `super::`: one, or several in
/// braces.
fn first_names(text: &str) -> Vec<&str> {
    let Some(group) = text.strip_prefix('{') else { return vec![first_word(text)] };
    let (mut names, mut depth) = (vec![first_word(group.trim_start())], 1);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(first_word(group[at + 1..].trim_start())),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The names that follow `prefix`, as a whole path.
fn names_after<'t>(code: &'t str, prefix: &'t str) -> impl Iterator<Item = &'t str> {
    let starts = code.match_indices(prefix).filter(|(at, _)| {
        let is_inner = |character: char| is_word(character) || character == ':';
        !code[..*at].ends_with(is_inner) && !code[at + prefix.len()..].starts_with("super::")
    });
    starts.flat_map(move |(at, _)| first_names(&code[at + prefix.len()..]))
}

/// The components of a module's path in its crate; none for the crate itself.
fn module_path(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> = file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") || matches!(&parts[..], [top] if top == "lib" || top == "main") {
        parts.pop();
    }
    parts
}

/// Which top-level modules of a crate use one another.
fn uses_of(source: &Path) -> ModuleUses {
    let mut files = Vec::new();
    rust_files(source, &mut files);
    let modules: Vec<(Vec<String>, String)> = files
        .iter()
        .map(|file| (module_path(file.strip_prefix(source).unwrap()), code_of(file)))
        .filter(|(path, _)| !path.iter().any(|part| part == "tests" || part.ends_with("_tests")))
        .collect();
    let mut uses: ModuleUses =
        modules.iter().filter_map(|(path, _)| Some((path.first()?.clone(), BTreeSet::new()))).collect();
    // What the crate itself exports is used by its own name.
    let mut exported: BTreeMap<&str, &str> = BTreeMap::new();
    for statement in modules.iter().filter(|(path, _)| path.is_empty()).flat_map(|(_, code)| code.split("use ").skip(1))
    {
        let statement = statement.split(';').next().unwrap_or_default();
        let module = first_word(statement.trim_start_matches("crate::").trim_start_matches("self::"));
        if uses.contains_key(module) {
            exported.extend(statement.split(|character| !is_word(character)).map(|name| (name, module)));
        }
    }
    for (path, code) in modules.iter().filter(|(path, _)| !path.is_empty()) {
        let to_top = "super::".repeat(path.len());
        for name in names_after(code, "crate::").chain(names_after(code, &to_top)) {
            let module = if uses.contains_key(name) { Some(name) } else { exported.get(name).copied() };
            if let Some(module) = module.filter(|module| *module != path[0]) {
                uses.get_mut(&path[0]).unwrap().insert(module.to_owned());
            }
        }
    }
    uses
}

/// The modules that `from` reaches.
fn reachable(uses: &ModuleUses, from: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = open.pop() {
        open.extend(uses[&module].iter().filter(|used| found.insert((*used).clone())).cloned());
    }
    found
}

/// The largest sets of modules that all use one another, directly or not.
fn cycles_in(uses: &ModuleUses) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reachable(uses, module))).collect();
    let cycle_of = |module: &String| -> BTreeSet<String> {
        reached[module].iter().filter(|other| reached[*other].contains(module)).cloned().collect()
    };
    uses.keys().map(cycle_of).filter(|cycle| cycle.len() > 1).collect()
}

/// The listed cycles: the crate and its modules.
fn listed_cycles() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split_once(SECTION).unwrap_or_else(|| panic!("ARCHITECTURE.md has no `{SECTION}`")).1;
    let rows =
        section.lines().skip(1).take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, modules, reason, _] = cells[..] else { panic!("a row of three cells: {row}") };
        assert!(!reason.is_empty(), "{row}");
        let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        (words(name).concat(), words(modules).into_iter().collect())
    })
    .collect()
}

#[test]
fn module_cycles_are_listed_with_their_reason() {
    let listed = listed_cycles();
    let mut faults = Vec::new();
    let mut is_found = vec![false; listed.len()];
    for entry in fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        for cycle in cycles_in(&uses_of(&entry.path().join("src"))) {
            match listed.iter().position(|(of, modules)| *of == name && cycle.is_subset(modules)) {
                Some(at) => is_found[at] = true,
                None => faults.push(format!("crate `{name}`: modules that use one another: {cycle:?}")),
            }
        }
    }
    let gone = listed.iter().zip(is_found).filter(|(_, is_found)| !is_found);
    faults.extend(gone.map(|((name, modules), _)| format!("crate `{name}`: no longer a cycle: {modules:?}")));
    assert!(faults.is_empty(), "ARCHITECTURE.md, `{SECTION}`:\n{}", faults.join("\n"));
}

#[test]
fn module_cycles_are_found() {
    assert_eq!(first_names("{a::b, c::{d, e}, f}; g"), ["a", "c", "f"]);
    let code = "use crate::a::B; use super::super::d; crate::c()";
    assert_eq!(names_after(code, "crate::").collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(names_after(code, "super::super::").collect::<Vec<_>>(), ["d"]);
    assert_eq!(names_after(code, "super::").count(), 0);
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "d")];
    let mut uses: ModuleUses = ["a", "b", "c", "d"].map(|module| (module.to_owned(), BTreeSet::new())).into();
    for (from, to) in edges {
        uses.get_mut(from).unwrap().insert(to.to_owned());
    }
    let cycles: Vec<_> = cycles_in(&uses).into_iter().map(|cycle| cycle.into_iter().collect::<Vec<_>>()).collect();
    assert_eq!(cycles, [["a", "b", "c"]]);
}
