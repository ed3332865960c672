//! Makes code of `knowledge/impacts.toml`. What cannot be read is an error here and
//! not an effect that nobody is asked about.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::text::{TableValue, parse_pairs, parse_tables};

type Pairs = Vec<(&'static str, TableValue)>;

/// What is gathered from the tables, in the order of the file.
#[derive(Default)]
struct Tables {
    /// Impact and message by code.
    codes: BTreeMap<&'static str, (&'static str, &'static str)>,
    uses: String,
    use_count: usize,
    names: Vec<(&'static str, usize)>,
    beginnings: Vec<(&'static str, usize)>,
    options: String,
    option_names: Vec<(&'static str, usize)>,
    option_count: usize,
    variables: String,
    variable_count: usize,
}

/// The tables as code.
pub fn code(content: &'static str) -> Result<String, String> {
    let mut all = Tables::default();
    for (table, body) in parse_tables(content) {
        let pairs: Pairs = parse_pairs(body).collect::<Result<_, _>>().map_err(|line| format!("[{table}]: {line}"))?;
        let (kind, name) = table.split_once('/').ok_or(table)?;
        match kind {
            "codes" => all.add_code(name, pairs),
            "options" => all.add_options(pairs),
            "variables" => all.add_variables(pairs),
            _ => all.add_use(pairs),
        }
        .map_err(|fault| format!("[{table}]: {fault}"))?;
    }
    Ok(all.finish())
}

impl Tables {
    fn add_code(&mut self, name: &'static str, pairs: Pairs) -> Result<(), String> {
        let (mut impact, mut message) = ("", "");
        for (key, value) in pairs {
            match (key, value) {
                ("impact", TableValue::Text("outward")) => impact = "Outward",
                ("impact", TableValue::Text("irreversible")) => impact = "Irreversible",
                ("message", TableValue::Text(text)) => message = text,
                (key, _) => return Err(key.to_owned()),
            }
        }
        if impact.is_empty() || message.is_empty() {
            return Err("says too little".to_owned());
        }
        self.codes.insert(name, (impact, message));
        Ok(())
    }

    fn add_options(&mut self, pairs: Pairs) -> Result<(), String> {
        let (mut programs, mut valued, mut flags, mut acts) = ("", "", "", false);
        for (key, value) in pairs {
            match (key, value) {
                ("programs", TableValue::Text(text)) => programs = text,
                ("valued", TableValue::Text(text)) => valued = text,
                ("flags", TableValue::Text(text)) => flags = text,
                ("acts", TableValue::Flag(flag)) => acts = flag,
                (key, _) => return Err(key.to_owned()),
            }
        }
        let _ = writeln!(
            self.options,
            "    Options {{ valued: &{:?}, flags: &{:?}, acts: {acts} }},",
            list(valued),
            list(flags)
        );
        self.option_names.extend(programs.split_ascii_whitespace().map(|program| (program, self.option_count)));
        self.option_count += 1;
        Ok(())
    }

    fn add_variables(&mut self, pairs: Pairs) -> Result<(), String> {
        let (mut names, mut hosts, mut code) = ("", "", "");
        for (key, value) in pairs {
            match (key, value) {
                ("names", TableValue::Text(text)) => names = text,
                ("hosts", TableValue::Text(text)) => hosts = text,
                ("code", TableValue::Text(text)) => code = self.known(text)?,
                (key, _) => return Err(key.to_owned()),
            }
        }
        let _ = writeln!(
            self.variables,
            "    Variables {{ names: &{:?}, hosts: &{:?}, code: {code:?} }},",
            list(names),
            list(hosts)
        );
        self.variable_count += 1;
        Ok(())
    }

    fn add_use(&mut self, pairs: Pairs) -> Result<(), String> {
        let mut programs = "";
        let mut fields: BTreeMap<&str, String> = BTreeMap::new();
        for (key, value) in pairs {
            let text = match (key, value) {
                ("programs", TableValue::Text(text)) => {
                    programs = text;
                    continue;
                }
                ("uses" | "except" | "harmless", TableValue::List(all)) => {
                    sequences(&all, |word| format!("&{:?}", alternatives(word)))
                }
                ("says", TableValue::List(all)) => sequences(&all, |word| format!("{word:?}")),
                ("needs", TableValue::List(all)) => {
                    let groups: Vec<String> = all.into_iter().map(|group| format!("&{:?}", list(group))).collect();
                    format!("&[{}]", groups.join(", "))
                }
                ("unless" | "spoils" | "hosts" | "value_is" | "value_not", TableValue::Text(text)) => {
                    format!("&{:?}", list(text))
                }
                ("last", TableValue::Text(text)) => format!("{text:?}"),
                ("operands", TableValue::Text(text)) => text.parse::<usize>().map_err(|e| e.to_string())?.to_string(),
                ("loopback", TableValue::Flag(flag)) => flag.to_string(),
                ("code", TableValue::Text(text)) => format!("{:?}", self.known(text)?),
                (key, _) => return Err(key.to_owned()),
            };
            fields.insert(key, text);
        }
        let says = |key| fields.contains_key(key);
        if programs.is_empty() || !says("code") || !["uses", "needs", "says", "last"].into_iter().any(says) {
            return Err("says too little".to_owned());
        }
        let fields: Vec<String> = fields.into_iter().map(|(key, text)| format!("{key}: {text}")).collect();
        let _ = writeln!(self.uses, "    ProgramUse {{ {}, ..ProgramUse::NONE }},", fields.join(", "));
        crate::index(programs, self.use_count, &mut self.names, &mut self.beginnings)?;
        self.use_count += 1;
        Ok(())
    }

    /// A code that has its table.
    fn known(&self, code: &'static str) -> Result<&'static str, String> {
        if self.codes.contains_key(code) { Ok(code) } else { Err(format!("no [codes/{code}] before it")) }
    }

    fn finish(mut self) -> String {
        self.names.sort_unstable();
        self.beginnings.sort_unstable();
        self.option_names.sort_unstable();
        let codes: Vec<String> = self
            .codes
            .iter()
            .map(|(code, (impact, message))| format!("({code:?}, Impact::{impact}, {message:?})"))
            .collect();
        format!(
            "static CODES: [(&str, Impact, &str); {}] = [{}];\nstatic USES: [ProgramUse; {}] = [\n{}];\npub(crate) const BY_NAME: [(&str, usize); {}] = {:?};\npub(crate) const BY_BEGINNING: [(&str, usize); {}] = {:?};\nstatic OPTIONS: [Options; {}] = [\n{}];\nconst OPTIONS_BY_NAME: [(&str, usize); {}] = {:?};\nstatic VARIABLES: [Variables; {}] = [\n{}];\n",
            codes.len(),
            codes.join(", "),
            self.use_count,
            self.uses,
            self.names.len(),
            self.names,
            self.beginnings.len(),
            self.beginnings,
            self.option_count,
            self.options,
            self.option_names.len(),
            self.option_names,
            self.variable_count,
            self.variables,
        )
    }
}

fn list(text: &'static str) -> Vec<&'static str> {
    text.split_ascii_whitespace().collect()
}

fn alternatives(word: &'static str) -> Vec<&'static str> {
    word.split('|').collect()
}

/// Sequences of words.
fn sequences(all: &[&'static str], word: impl Fn(&'static str) -> String) -> String {
    let rows: Vec<String> = all
        .iter()
        .map(|row| format!("&[{}]", row.split_ascii_whitespace().map(&word).collect::<Vec<_>>().join(", ")))
        .collect();
    format!("&[{}]", rows.join(", "))
}
