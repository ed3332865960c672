//! Makes code of the table of uses, so that nothing is parsed when a program starts. A table that
//! cannot be read is an error here and not a rule that is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs, io};

use serde::Deserialize;

#[path = "build/tables.rs"]
mod tables;

use tables::{TableIndex, index_code, index_programs, list_code, parse_table, read_tables, words};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeTable {
    impact: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OptionsTable {
    programs: String,
    #[serde(default)]
    valued: String,
    #[serde(default)]
    flags: String,
    #[serde(default)]
    acts: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VariablesTable {
    names: String,
    hosts: String,
    code: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UseTable {
    programs: String,
    uses: Vec<String>,
    harmless: Vec<String>,
    except: Vec<String>,
    needs: Vec<String>,
    hosts: String,
    value_is: String,
    value_not: String,
    says: Vec<String>,
    last: String,
    operands: String,
    loopback: bool,
    unless: String,
    spoils: String,
    code: String,
}

#[derive(Default)]
struct Tables {
    codes: BTreeMap<String, CodeTable>,
    uses: Vec<String>,
    names: TableIndex,
    beginnings: TableIndex,
    options: Vec<String>,
    option_names: BTreeSet<(String, usize)>,
    variables: Vec<String>,
}

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=knowledge");
    println!("cargo::rerun-if-changed=build");
    let root = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    let mut all = Tables::default();
    for (table, content) in read_tables(&Path::new(&root).join("knowledge/impacts.toml"))? {
        match table.split_once('/') {
            Some(("codes", name)) => _ = all.codes.insert(name.to_owned(), parse_table(&table, content)?),
            Some(("options", _)) => all.add_options(parse_table(&table, content)?),
            Some(("variables", _)) => all.add_variables(parse_table(&table, content)?),
            _ => all.add_use(&table, parse_table(&table, content)?)?,
        }
    }
    fs::write(Path::new(&out).join("impacts.rs"), all.into_code()?)
}

impl Tables {
    fn add_options(&mut self, table: OptionsTable) {
        let number = self.options.len();
        self.option_names.extend(words(&table.programs).into_iter().map(|program| (program.to_owned(), number)));
        let (valued, flags) = (words(&table.valued), words(&table.flags));
        self.options.push(format!("Options {{ valued: &{valued:?}, flags: &{flags:?}, acts: {} }}", table.acts));
    }

    fn add_variables(&mut self, table: VariablesTable) {
        let (names, hosts) = (words(&table.names), words(&table.hosts));
        self.variables.push(format!("Variables {{ names: &{names:?}, hosts: &{hosts:?}, code: {:?} }}", table.code));
    }

    fn add_use(&mut self, name: &str, table: UseTable) -> io::Result<()> {
        let has_condition = !(table.uses.is_empty() && table.needs.is_empty() && table.says.is_empty());
        if table.programs.is_empty() || !self.codes.contains_key(&table.code) || !has_condition && table.last.is_empty()
        {
            return Err(io::Error::other(format!("[{name}]: no programs, no condition, or an unknown code")));
        }
        let operands: usize =
            if table.operands.is_empty() { 0 } else { table.operands.parse().map_err(io::Error::other)? };
        let of_alternatives = |rows: &[String]| {
            let alternatives = |word: &str| format!("&{:?}", word.split('|').collect::<Vec<_>>());
            list_code(rows.iter().map(|row| list_code(words(row).into_iter().map(alternatives))))
        };
        let of_words = |rows: &[String]| list_code(rows.iter().map(|row| format!("&{:?}", words(row))));
        let texts = [
            ("uses", of_alternatives(&table.uses)),
            ("harmless", of_alternatives(&table.harmless)),
            ("except", of_alternatives(&table.except)),
            ("needs", of_words(&table.needs)),
            ("hosts", format!("&{:?}", words(&table.hosts))),
            ("value_is", format!("&{:?}", words(&table.value_is))),
            ("value_not", format!("&{:?}", words(&table.value_not))),
            ("says", of_words(&table.says)),
            ("last", format!("{:?}", table.last)),
            ("operands", operands.to_string()),
            ("loopback", table.loopback.to_string()),
            ("unless", format!("&{:?}", words(&table.unless))),
            ("spoils", format!("&{:?}", words(&table.spoils))),
            ("code", format!("{:?}", table.code)),
        ];
        index_programs(&table.programs, self.uses.len(), &mut self.names, &mut self.beginnings);
        self.uses.push(format!("ProgramUse {{ {} }}", texts.map(|(key, code)| format!("{key}: {code}")).join(", ")));
        Ok(())
    }

    fn into_code(self) -> io::Result<String> {
        let mut codes = Vec::new();
        for (code, CodeTable { impact, message }) in self.codes {
            let impact = match impact.as_str() {
                "outward" => "Outward",
                "irreversible" => "Irreversible",
                other => return Err(io::Error::other(format!("[codes/{code}]: {other}"))),
            };
            codes.push(format!("({code:?}, Impact::{impact}, {message:?})"));
        }
        let option_names: Vec<_> = self.option_names.into_iter().collect();
        Ok([
            format!("static CODES: &[(&str, Impact, &str)] = {};\n", list_code(codes)),
            format!("static USES: &[ProgramUse] = {};\n", list_code(self.uses)),
            format!("static OPTIONS: &[Options] = {};\n", list_code(self.options)),
            format!("const OPTIONS_BY_NAME: &[(&str, usize)] = &{option_names:?};\n"),
            format!("static VARIABLES: &[Variables] = {};\n", list_code(self.variables)),
            index_code(self.names, self.beginnings),
        ]
        .concat())
    }
}
