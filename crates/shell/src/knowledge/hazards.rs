//! The table of denied uses, read from `knowledge/hazards.toml` at first need.

use std::sync::OnceLock;

use super::text::{Value, pairs, tables};

const TEXT: &str = include_str!("../../knowledge/hazards.toml");

/// A denied use.
#[derive(Debug, Default)]
pub(crate) struct Hazard {
    pub programs: Vec<&'static str>,
    /// Of each group, at least one word must be among the arguments.
    pub needs: Vec<Vec<&'static str>>,
    /// None of these may be among them.
    pub unless: Vec<&'static str>,
    pub code: &'static str,
}

/// The table, and where a program stands in it.
struct Index {
    all: Vec<Hazard>,
    /// Sorted by name.
    by_name: Vec<(&'static str, usize)>,
    /// Names with a wildcard at their end.
    by_beginning: Vec<(&'static str, usize)>,
}

/// The denied uses of a program.
pub(crate) fn of(program: &[u8]) -> impl Iterator<Item = &'static Hazard> {
    static INDEX: OnceLock<Index> = OnceLock::new();
    let index = INDEX.get_or_init(index);
    let first = index.by_name.partition_point(|(name, _)| name.as_bytes() < program);
    let exact = index.by_name[first..].iter().take_while(move |(name, _)| name.as_bytes() == program);
    let begun = index.by_beginning.iter().filter(move |(beginning, _)| program.starts_with(beginning.as_bytes()));
    let numbers: Vec<usize> = exact.chain(begun).map(|(_, at)| *at).collect();
    numbers.into_iter().map(|at| &index.all[at])
}

fn index() -> Index {
    // A table that cannot be read is left out; a test keeps them readable.
    let all: Vec<Hazard> =
        tables(TEXT).filter(|(name, _)| *name != "lists").filter_map(|(_, body)| read(body).ok()).collect();
    let names = all.iter().enumerate().flat_map(|(at, hazard)| hazard.programs.iter().map(move |name| (*name, at)));
    let (by_beginning, mut by_name): (Vec<_>, Vec<_>) = names.partition(|(name, _)| name.ends_with('*'));
    by_name.sort_unstable();
    let by_beginning = by_beginning.into_iter().map(|(name, at)| (name.trim_end_matches('*'), at)).collect();
    Index { all, by_name, by_beginning }
}

/// Reads one table; `Err` names what has no meaning.
fn read(body: &'static str) -> Result<Hazard, &'static str> {
    let mut hazard = Hazard::default();
    for pair in pairs(body) {
        match pair? {
            ("programs", Value::Text(text)) => hazard.programs = text.split_ascii_whitespace().collect(),
            ("needs", Value::List(groups)) => {
                hazard.needs = groups.into_iter().map(words).collect::<Option<_>>().ok_or("needs")?;
            }
            ("unless", Value::Text(text)) => hazard.unless = words(text).ok_or("unless")?,
            ("code", Value::Text(text)) => hazard.code = text,
            (key, _) => return Err(key),
        }
    }
    if hazard.programs.is_empty() || hazard.code.is_empty() { Err("programs") } else { Ok(hazard) }
}

/// The words of a group, with named lists put in.
fn words(text: &'static str) -> Option<Vec<&'static str>> {
    let mut out = Vec::new();
    for word in text.split_ascii_whitespace() {
        match word.strip_prefix('@') {
            Some(list) => out.extend(named(list)?.split_ascii_whitespace()),
            None => out.push(word),
        }
    }
    Some(out)
}

fn named(list: &str) -> Option<&'static str> {
    let (_, body) = tables(TEXT).find(|(name, _)| *name == "lists")?;
    pairs(body).filter_map(Result::ok).find_map(|(key, value)| match value {
        Value::Text(text) if key == list => Some(text),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_readable() {
        for (name, body) in tables(TEXT).filter(|(name, _)| *name != "lists") {
            if let Err(fault) = read(body) {
                panic!("[{name}]: {fault}");
            }
        }
        let all = index().all;
        assert!(all.len() > 100, "{}", all.len());
        let whole: toml::Table = TEXT.parse().unwrap();
        assert_eq!(whole.len(), all.len() + 1);
        assert!(all.iter().flat_map(|h| &h.programs).all(|p| !p.trim_end_matches('*').contains(['*', '?'])));
    }
}
