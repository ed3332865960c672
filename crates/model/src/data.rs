//! The tables in `data/`: one entry a line, its fields separated by spaces.

/// Returns the entries of a table, without its comments.
pub(crate) fn table_rows(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}
