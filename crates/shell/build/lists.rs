//! The lists of words as constants.

use std::fmt::Write as _;

use crate::text::{TableValue, parse_pairs, parse_tables};

/// The code of all lists, or the line that cannot be read.
pub fn code(content: &'static str) -> Result<String, String> {
    let mut code = String::new();
    for (table, body) in parse_tables(content) {
        for pair in parse_pairs(body) {
            let (key, value) = pair.map_err(str::to_owned)?;
            let TableValue::List(rows) = value else { return Err(format!("[{table}]: {key}")) };
            let name = key.to_ascii_uppercase();
            let words = rows.iter().flat_map(|row| row.split_ascii_whitespace());
            let (kind, list) = match table {
                "words" => ("&[&str]", format!("{:?}", words.collect::<Vec<_>>())),
                "texts" => ("&[&str]", format!("{rows:?}")),
                "uses" => ("&[(&str, &[&str])]", uses(&rows)),
                _ => return Err(table.to_owned()),
            };
            if rows.is_empty() || rows.contains(&"") {
                return Err(format!("[{table}]: {key} is empty"));
            }
            let _ = writeln!(code, "pub(crate) const {name}: {kind} = &{list};");
        }
    }
    Ok(code)
}

fn uses(rows: &[&str]) -> String {
    let use_of = |row: &&str| {
        let mut words = row.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        format!("({first:?}, &{:?})", words.collect::<Vec<_>>())
    };
    format!("[{}]", rows.iter().map(use_of).collect::<Vec<_>>().join(", "))
}
