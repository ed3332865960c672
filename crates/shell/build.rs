//! Makes code of the knowledge base, so that nothing has to be parsed when a command is classified.
//! A table that cannot be read is an error here and not a rule that is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

use serde::Deserialize;
use toml::Table;

#[path = "build/entries.rs"]
mod entries;
#[allow(dead_code, reason = "shared with the crate")]
#[path = "src/knowledge/kinds.rs"]
mod kinds;
#[path = "../effects/build/tables.rs"]
mod tables;

use entries::{CodeList, parse_entry, same_names};
use tables::{TableIndex, index_code, index_programs, list_code, parse_table, read_tables, words};

/// Files in the directory that are no families of programs.
const OTHERS: &[&str] = &["hazards", "lists", "neutralise"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HazardTable {
    programs: String,
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    unless: String,
    code: String,
}

/// Settings that a run must neutralise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SanitizeSet {
    remove: CodeList<String>,
    environment: CodeList<String>,
    config: CodeList<String>,
    repository: bool,
    rustup: bool,
    quiet: bool,
}

fn main() -> io::Result<()> {
    for path in ["knowledge", "build", "src/knowledge/kinds.rs", "../effects/build/tables.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let knowledge = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("knowledge");
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let codes = [
        ("commands", commands_code(&knowledge)?),
        ("hazards", hazards_code(&knowledge.join("hazards.toml"))?),
        ("lists", lists_code(&knowledge.join("lists.toml"))?),
        ("sanitize_sets", sanitize_code(&knowledge.join("neutralise.toml"))?),
    ];
    codes.into_iter().try_for_each(|(name, code)| fs::write(Path::new(&out).join(format!("{name}.rs")), code))
}

fn commands_code(knowledge: &Path) -> io::Result<String> {
    let mut all: BTreeMap<String, Table> = BTreeMap::new();
    for file in fs::read_dir(knowledge)? {
        let path = file?.path();
        let family = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "toml") && !OTHERS.contains(&family.as_str()) {
            for (name, table) in read_tables(&path)? {
                assert!(all.insert(name.clone(), table).is_none(), "{name} is there twice");
            }
        }
    }
    let (mut names, mut specs) = (BTreeMap::new(), Vec::new());
    for (name, table) in all.iter().filter(|(name, _)| !name.starts_with('@')) {
        let spec = parse_entry(table, &|group| all.get(group));
        let spec = spec.map_err(|fault| io::Error::other(format!("[{name}]: {fault}")))?;
        for other in std::iter::once(name.as_str()).chain(same_names(name, table)) {
            assert!(names.insert(other, (name, specs.len())).is_none(), "{other} is there twice");
        }
        specs.push(format!("{spec:?}"));
    }
    let names: Vec<_> = names.into_iter().map(|(name, (canonical, spec))| (name, canonical, spec)).collect();
    Ok(format!(
        "pub(super) static NAMES: &[(&str, &str, usize)] = &{names:?};\npub(super) static SPECS: &[CommandSpec] = {};\n",
        list_code(specs)
    ))
}

fn sanitize_code(path: &Path) -> io::Result<String> {
    let set_code = |(name, mut table): (String, Table)| {
        table.remove("source");
        Ok(format!("({name:?}, {:?})", parse_table::<SanitizeSet>(&name, table)?))
    };
    let sets = read_tables(path)?.into_iter().map(set_code).collect::<io::Result<Vec<_>>>()?;
    Ok(format!("static SANITIZE_SETS: &[(&str, SanitizeSet)] = {};\n", list_code(sets)))
}

fn hazards_code(path: &Path) -> io::Result<String> {
    let (mut lists, mut messages, mut uses) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut names, mut beginnings) = (TableIndex::new(), TableIndex::new());
    for (name, table) in read_tables(path)? {
        if let Some(texts) =
            [("lists", &mut lists), ("messages", &mut messages)].into_iter().find(|(own, _)| *own == name)
        {
            *texts.1 = parse_table::<BTreeMap<String, String>>(&name, table)?;
            continue;
        }
        let hazard: HazardTable = parse_table(&name, table)?;
        assert!(!hazard.programs.is_empty(), "[{name}] names no program");
        index_programs(&hazard.programs, uses.len(), &mut names, &mut beginnings);
        let all_words = |text: &str| -> String {
            let of_word = |word: &str| match word.strip_prefix('@') {
                Some(list) => words(&lists[list]).into_iter().map(str::to_owned).collect(),
                None => vec![word.to_owned()],
            };
            format!("&{:?}", words(text).into_iter().flat_map(of_word).collect::<Vec<_>>())
        };
        assert!(hazard.needs.iter().all(|group| !words(group).is_empty()), "[{name}] has an empty group");
        let needs = list_code(hazard.needs.iter().map(|group| all_words(group)));
        let unless = all_words(&hazard.unless);
        uses.push(format!(
            "Hazard {{ needs: {needs}, unless: {unless}, code: {:?}, message: {:?} }}",
            hazard.code, messages[&hazard.code]
        ));
    }
    Ok(format!("static HAZARDS: &[Hazard] = {};\n{}", list_code(uses), index_code(names, beginnings)))
}

fn lists_code(path: &Path) -> io::Result<String> {
    let mut code = String::new();
    for (kind, table) in read_tables(path)? {
        for (key, rows) in parse_table::<BTreeMap<String, Vec<String>>>(&kind, table)? {
            assert!(!rows.is_empty() && !rows.contains(&String::new()), "[{kind}]: {key} is empty");
            let use_code = |row: &String| {
                let row = words(row);
                format!("({:?}, &{:?})", row[0], &row[1..])
            };
            let (kind, list) = match kind.as_str() {
                "words" => ("&[&str]", format!("&{:?}", rows.iter().flat_map(|row| words(row)).collect::<Vec<_>>())),
                "texts" => ("&[&str]", format!("&{rows:?}")),
                "uses" => ("&[(&str, &[&str])]", list_code(rows.iter().map(use_code))),
                other => return Err(io::Error::other(format!("[{other}] is no kind of lists"))),
            };
            let _ = writeln!(code, "pub(crate) const {}: {kind} = {list};", key.to_ascii_uppercase());
        }
    }
    Ok(code)
}
