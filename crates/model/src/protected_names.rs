//! Names that carry code or settings which the host later trusts.

use std::sync::LazyLock;

use crate::data::table_rows;

/// Class of a protected name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameClass {
    /// Belongs to the engine or to an agent: writable with a grant only.
    Agent,
    /// Runs automatically on the host and is not visible in a review: writable with a grant only.
    Runs,
    /// Like `Runs`, but its content is checked: harmless content is written without a question.
    Checked,
}

/// Names that are protected in every writable directory, whether or not they exist (L7), with their class
/// and the program that reads them.
pub static PROTECTED_NAMES: LazyLock<Vec<(&str, NameClass, &str)>> =
    LazyLock::new(|| table_rows(include_str!("../data/protected_names.txt")).filter_map(parse_row).collect());

/// The protected names without class and program.
pub static DEFAULT_PROTECTED_NAMES: LazyLock<Vec<&str>> =
    LazyLock::new(|| PROTECTED_NAMES.iter().map(|(name, ..)| *name).collect());

fn parse_row(row: &'static str) -> Option<(&'static str, NameClass, &'static str)> {
    let (name, rest) = row.split_once(' ')?;
    let (class, program) = rest.split_once(' ')?;
    let class = match class {
        "agent" => NameClass::Agent,
        "runs" => NameClass::Runs,
        "checked" => NameClass::Checked,
        _ => return None,
    };
    Some((name, class, program))
}

/// Returns the names whose content is checked.
pub fn list_checked_names() -> impl Iterator<Item = &'static str> {
    PROTECTED_NAMES.iter().filter(|(_, class, _)| *class == NameClass::Checked).map(|(name, _, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_name() {
        let rows = table_rows(include_str!("../data/protected_names.txt")).count();
        assert_eq!((rows, PROTECTED_NAMES.len()), (117, 117));
    }
}
