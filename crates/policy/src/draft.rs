//! A rule before it is written to a file: its keys in their written form, with a comment above. Answers,
//! imports and suggestions make such rules.
//!
//! Must not know files: `amend` puts the text into one, `merge` checks it there.

use stockade_model::PolicyVerdict;

use crate::file::{FileOperation, ProvenanceSection};
use crate::pattern::WordPattern;

/// A rule that is not yet written. Empty lists are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftRule {
    /// Comment lines above the rule, without `#`.
    pub comments: Vec<String>,
    /// `prefix`.
    pub prefix: Vec<WordPattern>,
    /// `glob`.
    pub glob: Vec<String>,
    /// `options.present`.
    pub present: Vec<WordPattern>,
    /// `options.absent`.
    pub absent: Vec<WordPattern>,
    /// `facts.reads`, `facts.writes` and `facts.deletes`: an `allow` rule then requires that every path of
    /// the command is within one of these.
    pub paths_within: Vec<String>,
    /// `tool`.
    pub tool: Vec<String>,
    /// `arguments`.
    pub arguments: Vec<(String, Vec<String>)>,
    /// `files`.
    pub files: Vec<String>,
    /// `operations`.
    pub operations: Vec<FileOperation>,
    /// `hosts`.
    pub hosts: Vec<String>,
    /// `effect`.
    pub effect: PolicyVerdict,
    /// `justification`.
    pub justification: String,
    /// `grants`.
    pub grants: Vec<String>,
    /// `match`.
    pub matches: Vec<String>,
    /// `not_match`.
    pub not_match: Vec<String>,
    /// `provenance`.
    pub provenance: Option<ProvenanceSection>,
}

impl DraftRule {
    /// Returns a rule without conditions.
    pub fn new(effect: PolicyVerdict, justification: impl Into<String>) -> Self {
        Self { effect, justification: justification.into(), ..Self::default() }
    }

    /// Returns the rule as a `[[rules]]` table.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for line in &self.comments {
            text.push_str(&format_comment(line));
        }
        text.push_str("[[rules]]\n");
        let words = |list: &[WordPattern]| list.iter().map(format_word).collect::<Vec<_>>();
        let texts = |list: &[String]| list.iter().map(|text| quote_toml(text)).collect::<Vec<_>>();
        let operations: Vec<String> =
            self.operations.iter().map(|operation| quote_toml(&format!("{operation:?}").to_lowercase())).collect();
        let lists = [
            ("prefix", words(&self.prefix)),
            ("glob", texts(&self.glob)),
            ("options.present", words(&self.present)),
            ("options.absent", words(&self.absent)),
            ("facts.reads", texts(&self.paths_within)),
            ("facts.writes", texts(&self.paths_within)),
            ("facts.deletes", texts(&self.paths_within)),
            ("tool", texts(&self.tool)),
        ];
        for (key, items) in lists {
            push_list(&mut text, key, &items);
        }
        for (name, values) in &self.arguments {
            let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            let key = if bare { name.clone() } else { quote_toml(name) };
            push_list(&mut text, &format!("arguments.{key}"), &texts(values));
        }
        for (key, items) in [("files", texts(&self.files)), ("operations", operations), ("hosts", texts(&self.hosts))] {
            push_list(&mut text, key, &items);
        }
        text.push_str(&format!("effect = \"{}\"\n", self.effect));
        push_list(&mut text, "grants", &texts(&self.grants));
        text.push_str(&format!("justification = {}\n", quote_toml(&self.justification)));
        push_list(&mut text, "match", &texts(&self.matches));
        push_list(&mut text, "not_match", &texts(&self.not_match));
        if let Some(provenance) = &self.provenance {
            let mut parts = vec![format!("by = {}", quote_toml(&provenance.by))];
            parts.extend(provenance.at.iter().map(|at| format!("at = {}", quote_toml(at))));
            parts.extend(provenance.request.iter().map(|request| format!("request = {}", quote_toml(request))));
            text.push_str(&format!("provenance = {{ {} }}\n", parts.join(", ")));
        }
        text
    }
}

/// Returns one comment line; control characters cannot end it.
pub(crate) fn format_comment(line: &str) -> String {
    let plain: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if plain.is_empty() { "#\n".to_owned() } else { format!("# {plain}\n") }
}

/// Returns a string in TOML syntax.
pub(crate) fn quote_toml(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

fn format_word(word: &WordPattern) -> String {
    match word.alternatives() {
        [one] => quote_toml(one),
        several => format!("[{}]", several.iter().map(|text| quote_toml(text)).collect::<Vec<_>>().join(", ")),
    }
}

/// Widest list on one line, in characters.
const MAX_LINE_CHARACTERS: usize = 100;

fn push_list(text: &mut String, key: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let line = format!("{key} = [{}]\n", items.join(", "));
    if line.chars().count() <= MAX_LINE_CHARACTERS {
        text.push_str(&line);
        return;
    }
    text.push_str(&format!("{key} = [\n"));
    for item in items {
        text.push_str(&format!("    {item},\n"));
    }
    text.push_str("]\n");
}
