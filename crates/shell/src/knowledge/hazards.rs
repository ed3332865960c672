//! Table of denied uses: `knowledge/hazards.toml`, converted to code at build time.

/// Denied use.
#[derive(Debug)]
pub(crate) struct Hazard {
    /// At least one word of each group must be among the arguments.
    pub needs: &'static [&'static [&'static str]],
    /// None of these may be among them.
    pub unless: &'static [&'static str],
    pub code: &'static str,
    /// Sentence for a person.
    pub message: &'static str,
}

// HAZARDS; BY_NAME, sorted by name; BY_BEGINNING, names with a wildcard at their end. No name is
// shorter than two letters.
include!(concat!(env!("OUT_DIR"), "/hazards.rs"));

/// Returns the denied uses of a program.
pub(crate) fn program_hazards(program: &[u8]) -> impl Iterator<Item = &'static Hazard> {
    stockade_effects::find_rows(BY_NAME, BY_BEGINNING, program).map(|at| &HAZARDS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the generated code has the content that a full TOML parser reads.
    #[test]
    fn the_code_is_the_table() {
        let whole: toml::Table = include_str!("../../knowledge/hazards.toml").parse().unwrap();
        let lists = whole["lists"].as_table().unwrap();
        let words = |text: &str| -> Vec<String> {
            text.split_ascii_whitespace()
                .flat_map(|word| match word.strip_prefix('@') {
                    Some(list) => lists[list].as_str().unwrap().split_ascii_whitespace().map(str::to_owned).collect(),
                    None => vec![word.to_owned()],
                })
                .collect()
        };
        assert_eq!(whole.len(), HAZARDS.len() + 2);
        assert!(HAZARDS.len() > 100, "{}", HAZARDS.len());
        for (name, table) in whole.iter().filter(|(name, _)| !["lists", "messages"].contains(&name.as_str())) {
            let needs: Vec<Vec<String>> = table.get("needs").map_or_else(Vec::new, |groups| {
                groups.as_array().unwrap().iter().map(|group| words(group.as_str().unwrap())).collect()
            });
            let unless = table.get("unless").map_or_else(Vec::new, |text| words(text.as_str().unwrap()));
            for program in table["programs"].as_str().unwrap().split_ascii_whitespace() {
                let found = program_hazards(program.trim_end_matches('*').as_bytes()).any(|hazard| {
                    hazard.code == table["code"].as_str().unwrap()
                        && hazard.message == whole["messages"][hazard.code].as_str().unwrap()
                        && hazard.needs.iter().map(|g| g.to_vec()).collect::<Vec<_>>() == needs
                        && hazard.unless == unless
                });
                assert!(found, "[{name}] {program}");
            }
        }
    }
}
