//! Finds where every table of the knowledge base stands, so that nothing has to
//! be searched for when a command is judged. What a table says is read when its
//! program is first met.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

#[allow(dead_code, reason = "shared with the crate, which reads tables as well")]
#[path = "src/knowledge/text.rs"]
mod text;

/// Files in the directory that are no families of programs.
const OTHERS: &[&str] = &["hazards", "neutralise"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=knowledge");
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
        let _ = writeln!(code, "const FILE_{number}: &str = include_str!({:?});", path.display().to_string());
        let content: &'static str = fs::read_to_string(path)?.leak();
        for (name, body) in text::tables(content) {
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
    let _ = writeln!(code, "static SLOTS: [Slot; {}] = [", slots.len());
    for (name, canonical, file, start, end) in &slots {
        let _ = writeln!(code, "    Slot::new({name:?}, {canonical:?}, FILE_{file}, {start}, {end}),");
    }
    code.push_str("];\n");
    fs::write(Path::new(&out).join("index.rs"), code)
}

/// Other names of a table: its first key. Names of subcommands hold a blank, so
/// that commas part them.
fn further_names(name: &str, body: &'static str) -> impl Iterator<Item = &'static str> {
    let same = body.strip_prefix("same = \"").and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let separator = if name.contains(' ') { ',' } else { ' ' };
    same.split(separator).map(str::trim).filter(|other| !other.is_empty())
}
