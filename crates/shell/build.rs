//! Finds where every table of the knowledge base stands, so that nothing has to
//! be searched for when a command is judged. What a table says is read when its
//! program is first met. The table of denied uses is made into code whole: one
//! that cannot be read is an error here and not a rule that is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

#[path = "build/lists.rs"]
mod lists;
#[allow(dead_code, reason = "shared with the crate, which reads tables as well")]
#[path = "src/knowledge/text.rs"]
mod text;

use text::TableValue;

/// Makes the code of a table from its text.
type TableCode = fn(&'static str) -> Result<String, String>;

/// Files in the directory that are no families of programs.
const OTHERS: &[&str] = &["hazards", "lists", "neutralise"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=knowledge");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/knowledge/text.rs");
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let mut families = Vec::new();
    for file in fs::read_dir(Path::new(&root).join("knowledge"))? {
        let path = file?.path();
        let family = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "toml") && !OTHERS.contains(&family.as_str()) {
            families.push((family, path));
        }
    }
    families.sort();
    let mut slots: Vec<(String, String, usize, usize, usize)> = Vec::new();
    let mut code = String::new();
    for (number, (family, path)) in families.iter().enumerate() {
        // By the place that the compiler is told, not by the one that this saw: what was
        // built is the same wherever the source stands.
        let _ = writeln!(
            code,
            "const FILE_{number}: &str = include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/knowledge/{family}.toml\"));"
        );
        let content: &'static str = fs::read_to_string(path)?.leak();
        for (name, body) in text::parse_tables(content) {
            let start = body.as_ptr() as usize - content.as_ptr() as usize;
            for other in std::iter::once(name).chain(further_names(name, body)) {
                slots.push((other.to_owned(), name.to_owned(), number, start, start + body.len()));
            }
        }
        assert!(!family.is_empty());
    }
    slots.sort();
    let names: Vec<String> = families.iter().enumerate().map(|(n, (f, _))| format!("({f:?}, FILE_{n})")).collect();
    let _ = writeln!(code, "#[cfg(test)]\nconst FILES: &[(&str, &str)] = &[{}];", names.join(", "));
    let _ = writeln!(code, "static SLOTS: [TableSlot; {}] = [", slots.len());
    for (name, canonical, file, start, end) in &slots {
        let _ = writeln!(code, "    TableSlot::new({name:?}, {canonical:?}, FILE_{file}, {start}, {end}),");
    }
    code.push_str("];\n");
    fs::write(Path::new(&out).join("index.rs"), code)?;
    let tables: [(&str, TableCode); 2] = [("hazards", hazards_code), ("lists", lists::code)];
    for (name, code) in tables {
        let text = fs::read_to_string(Path::new(&root).join(format!("knowledge/{name}.toml")))?;
        let code = code(text.leak()).map_err(|fault| io::Error::other(format!("{name}.toml: {fault}")))?;
        fs::write(Path::new(&out).join(format!("{name}.rs")), code)?;
    }
    Ok(())
}

/// The table of denied uses as code: the uses, and where a program's stand.
fn hazards_code(content: &'static str) -> Result<String, String> {
    let mut lists = BTreeMap::new();
    let mut uses = String::new();
    let (mut names, mut beginnings) = (Vec::new(), Vec::new());
    let mut count = 0;
    for (table, body) in text::parse_tables(content) {
        let pairs: Vec<(&str, TableValue)> =
            text::parse_pairs(body).collect::<Result<_, _>>().map_err(|line| format!("[{table}]: {line}"))?;
        if table == "lists" {
            for (name, value) in pairs {
                let TableValue::Text(words) = value else { return Err(format!("[lists]: {name}")) };
                lists.insert(name, words);
            }
            continue;
        }
        let (programs, code) = one_hazard(pairs, &lists).map_err(|fault| format!("[{table}]: {fault}"))?;
        index(programs, count, &mut names, &mut beginnings).map_err(|program| format!("[{table}]: {program}"))?;
        uses.push_str(&code);
        count += 1;
    }
    names.sort_unstable();
    beginnings.sort_unstable();
    Ok(format!(
        "static HAZARDS: [Hazard; {count}] = [\n{uses}];\npub(crate) const BY_NAME: &[(&str, usize)] = &{names:?};\npub(crate) const BY_BEGINNING: &[(&str, usize)] = &{beginnings:?};\n"
    ))
}

/// Notes under which names a table stands; a name with `*` at its end is a beginning.
fn index(
    programs: &'static str,
    table: usize,
    names: &mut Vec<(&'static str, usize)>,
    beginnings: &mut Vec<(&'static str, usize)>,
) -> Result<(), &'static str> {
    for program in programs.split_ascii_whitespace() {
        match program.strip_suffix('*') {
            Some(beginning) if beginning.len() > 1 && !beginning.contains(['*', '?']) => {
                beginnings.push((beginning, table))
            }
            None if program.len() > 1 && !program.contains('?') => names.push((program, table)),
            _ => return Err(program),
        }
    }
    Ok(())
}

/// The programs of one denied use, and the use as code.
fn one_hazard(
    pairs: Vec<(&str, TableValue)>,
    lists: &BTreeMap<&str, &'static str>,
) -> Result<(&'static str, String), String> {
    let (mut programs, mut code) = ("", "");
    let (mut needs, mut unless) = (Vec::new(), Vec::new());
    for (key, value) in pairs {
        match (key, value) {
            ("programs", TableValue::Text(text)) => programs = text,
            ("needs", TableValue::List(groups)) => {
                needs = groups.into_iter().map(|group| words(group, lists)).collect::<Result<_, _>>()?;
            }
            ("unless", TableValue::Text(text)) => unless = words(text, lists)?,
            ("code", TableValue::Text(text)) => code = text,
            (key, _) => return Err(key.to_owned()),
        }
    }
    if programs.is_empty() || code.is_empty() || needs.iter().any(Vec::is_empty) {
        return Err("says too little".to_owned());
    }
    let needs: Vec<String> = needs.iter().map(|group| format!("&{group:?}")).collect();
    Ok((programs, format!("    Hazard {{ needs: &[{}], unless: &{unless:?}, code: {code:?} }},\n", needs.join(", "))))
}

/// The words of a group, with named lists put in.
fn words(group: &'static str, lists: &BTreeMap<&str, &'static str>) -> Result<Vec<&'static str>, String> {
    let mut out = Vec::new();
    for word in group.split_ascii_whitespace() {
        match word.strip_prefix('@') {
            Some(list) => out.extend(lists.get(list).ok_or(word)?.split_ascii_whitespace()),
            None => out.push(word),
        }
    }
    Ok(out)
}

/// Other names of a table: its first key. Names of subcommands hold a blank, so
/// that commas part them.
fn further_names(name: &str, body: &'static str) -> impl Iterator<Item = &'static str> {
    let same = body.strip_prefix("same = \"").and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let separator = if name.contains(' ') { ',' } else { ' ' };
    same.split(separator).map(str::trim).filter(|other| !other.is_empty())
}
