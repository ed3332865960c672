//! Reads data files for the build scripts of this crate and of `shell`.

use std::collections::BTreeMap;
use std::{fs, io, path::Path};

use serde::de::DeserializeOwned;
use toml::Spanned;

/// Numbers of tables by a name or by the beginning of a name.
pub type TableIndex = Vec<(String, usize)>;

/// Reads the tables of a file, in the order of the file.
///
/// # Errors
/// The file cannot be read, or is not TOML.
pub fn read_tables(path: &Path) -> io::Result<Vec<(String, toml::Table)>> {
    let all: BTreeMap<String, Spanned<toml::Table>> = toml::from_str(&fs::read_to_string(path)?)
        .map_err(|fault| io::Error::other(format!("{}: {fault}", path.display())))?;
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, table)| table.span().start);
    Ok(all.into_iter().map(|(name, table)| (name, table.into_inner())).collect())
}

/// Returns the rows of a table. A key without meaning is an error.
///
/// # Errors
/// The name of the table and the fault.
pub fn parse_table<T: DeserializeOwned>(name: &str, table: toml::Table) -> io::Result<T> {
    table.try_into().map_err(|fault| io::Error::other(format!("[{name}]: {fault}")))
}

/// Adds a table to the index of its programs: `x*` is a beginning.
///
/// # Panics
/// A name is too short, or has wildcards elsewhere.
pub fn index_programs(programs: &str, table: usize, names: &mut TableIndex, beginnings: &mut TableIndex) {
    for program in programs.split_ascii_whitespace() {
        let (name, list) = match program.strip_suffix('*') {
            Some(beginning) => (beginning, &mut *beginnings),
            None => (program, &mut *names),
        };
        assert!(name.len() > 1 && !name.contains(['*', '?']), "a name of programs: {program}");
        list.push((name.to_owned(), table));
    }
}

/// Returns the code of the two indexes, sorted.
pub fn index_code(mut names: TableIndex, mut beginnings: TableIndex) -> String {
    names.sort_unstable();
    beginnings.sort_unstable();
    format!(
        "/// Tables by the name of a program, sorted.
pub const BY_NAME: &[(&str, usize)] = &{names:?};
/// Tables by the beginning of a program's name, sorted.
pub const BY_BEGINNING: &[(&str, usize)] = &{beginnings:?};\n"
    )
}

/// Returns the words of a text.
pub fn words(text: &str) -> Vec<&str> {
    text.split_ascii_whitespace().collect()
}

/// Returns the code of a list whose items are code.
pub fn list_code(items: impl IntoIterator<Item = String>) -> String {
    format!("&[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}
