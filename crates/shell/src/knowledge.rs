//! The knowledge base: which programs are known readers, and which of their
//! options do nothing but read. The data lies in `knowledge/*.toml`, one file
//! per family, read when a program of the family is first met. A program or an
//! option that is not listed is not known.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::Deserialize;

/// What using an option amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Inert,
    Writes,
    Executes,
    /// Reads something that is not judged: a file of names, a directory.
    Reads,
}

/// What an option takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arity {
    Flag,
    /// `-o VALUE`, `-oVALUE`, `--long VALUE`, `--long=VALUE`
    Value(String),
    /// `-oVALUE`, `--long=VALUE` or none
    Optional(String),
    /// Two values (jq's `--arg`).
    Pair(String),
}

/// One option.
#[derive(Clone, Debug)]
pub(crate) struct OptionSpec {
    pub effect: Effect,
    pub arity: Arity,
}

/// One program or subcommand.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub options: HashMap<String, OptionSpec>,
    /// Kinds of the operands in order; the last may repeat.
    pub operands: Vec<String>,
    /// Options that stand in for the first operand.
    pub given_by: Vec<String>,
    /// At least one of these must be there.
    pub requires: Vec<String>,
    /// And at least one of these.
    pub requires_too: Vec<String>,
    /// `git` or `toolchain`: harmless only where the runner takes away what the
    /// repository configures.
    pub condition: Option<String>,
    /// Options that need the condition although the program does not.
    pub conditional_options: Vec<String>,
    /// With one of these, `operands_then` holds instead.
    pub operands_with: Vec<String>,
    pub operands_then: Vec<String>,
    /// `-5` is an option.
    pub numeric: bool,
    /// No option can do harm: a leading wildcard is fine.
    pub globs: bool,
    /// Every word is an operand.
    pub any: bool,
    /// Options end at the first operand.
    pub stops: bool,
    /// The first word may be a cluster without a dash (tar).
    pub bundled: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Written {
    #[cfg_attr(not(test), allow(dead_code, reason = "read by people; its presence is tested"))]
    source: String,
    same: String,
    flags: String,
    valued: String,
    optional: String,
    pairs: String,
    writes: String,
    executes: String,
    reads: String,
    operands: String,
    given_by: String,
    requires: String,
    requires_too: String,
    condition: Option<String>,
    conditional_options: String,
    operands_with: String,
    operands_then: String,
    numeric: bool,
    globs: bool,
    any: bool,
    stops: bool,
    bundled: bool,
}

struct Family {
    text: &'static str,
    /// Programs in it, so that only the file that is needed is read.
    programs: &'static [&'static str],
    entries: OnceLock<HashMap<String, Entry>>,
}

const fn family(text: &'static str, programs: &'static [&'static str]) -> Family {
    Family { text, programs, entries: OnceLock::new() }
}

static FAMILIES: [Family; 6] = [
    family(
        include_str!("../knowledge/files.toml"),
        &[
            "ls",
            "cat",
            "tac",
            "head",
            "tail",
            "nl",
            "stat",
            "file",
            "du",
            "df",
            "readlink",
            "realpath",
            "basename",
            "dirname",
            "tree",
            "wc",
            "md5sum",
            "sha1sum",
            "sha224sum",
            "sha256sum",
            "sha384sum",
            "sha512sum",
            "b2sum",
            "cksum",
            "xxd",
            "od",
            "hexdump",
            "hd",
            "strings",
            "diff",
            "cmp",
            "comm",
            "unzip",
            "zipinfo",
            "tar",
            "zcat",
            "gzcat",
            "bzcat",
            "xzcat",
            "zstdcat",
            "nm",
            "readelf",
            "objdump",
            "size",
            "namei",
            "getfacl",
            "lsattr",
        ],
    ),
    family(
        include_str!("../knowledge/text.toml"),
        &[
            "grep", "egrep", "fgrep", "rg", "fd", "fdfind", "sort", "uniq", "cut", "tr", "paste", "join", "column",
            "fold", "fmt", "expand", "unexpand", "rev", "seq", "base64", "base32", "shuf", "tsort", "sed", "awk",
            "gawk", "mawk", "nawk", "jq", "yq",
        ],
    ),
    family(
        include_str!("../knowledge/shell.toml"),
        &[
            "echo", "printf", "true", "false", ":", "pwd", "type", "which", "command", "printenv", "ulimit", "cd",
            "sleep", "exit", "return", "expr", "umask", "times",
        ],
    ),
    family(
        include_str!("../knowledge/system.toml"),
        &[
            "uname", "arch", "whoami", "logname", "users", "tty", "hostid", "id", "groups", "date", "nproc", "free",
            "uptime", "ps", "lscpu", "lsblk", "lsmod", "who", "w", "hostname", "locale", "getconf", "vmstat", "pgrep",
            "pidof", "python3", "python", "gcc", "cc", "g++", "c++", "clang", "clang++", "node", "perl", "ruby",
            "bash", "make", "cmake", "java", "javac", "php", "lua", "ninja", "curl", "wget", "openssl",
        ],
    ),
    family(
        include_str!("../knowledge/rust.toml"),
        &["cargo", "rustc", "rustfmt", "rustup", "clippy-driver", "rustdoc", "go"],
    ),
    family(include_str!("../knowledge/git.toml"), &["git"]),
];

/// The entry of a program, or of a subcommand written `git log`.
pub(crate) fn lookup(name: &str) -> Option<&'static Entry> {
    let program = name.split(' ').next().unwrap_or_default();
    let family = FAMILIES.iter().find(|f| f.programs.contains(&program))?;
    // An unreadable file knows nothing; a test keeps the files readable.
    family.entries.get_or_init(|| read(family.text).unwrap_or_default()).get(name)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn read(text: &str) -> Result<HashMap<String, Entry>, toml::de::Error> {
    let written: HashMap<String, Written> = toml::from_str(text)?;
    let mut out = HashMap::with_capacity(written.len() * 2);
    for (name, one) in written {
        for other in one.same.split_whitespace() {
            out.insert(other.to_owned(), entry(&one));
        }
        out.insert(name, entry(&one));
    }
    Ok(out)
}

fn entry(written: &Written) -> Entry {
    let mut options = HashMap::new();
    let mut add = |text: &str, effect: Effect, arity: fn(String) -> Arity| {
        for word in text.split_whitespace() {
            let (name, kind) = word.split_once(':').unwrap_or((word, ""));
            let arity = if word.contains(':') { arity(kind.to_owned()) } else { Arity::Flag };
            options.insert(name.to_owned(), OptionSpec { effect, arity });
        }
    };
    // Later lines win: what does harm is never made inert by a second mention.
    add(&written.flags, Effect::Inert, Arity::Value);
    add(&written.valued, Effect::Inert, Arity::Value);
    add(&written.optional, Effect::Inert, Arity::Optional);
    add(&written.pairs, Effect::Inert, Arity::Pair);
    add(&written.reads, Effect::Reads, Arity::Value);
    add(&written.writes, Effect::Writes, Arity::Value);
    add(&written.executes, Effect::Executes, Arity::Value);
    Entry {
        options,
        operands: words(&written.operands),
        given_by: words(&written.given_by),
        requires: words(&written.requires),
        requires_too: words(&written.requires_too),
        condition: written.condition.clone(),
        conditional_options: words(&written.conditional_options),
        operands_with: words(&written.operands_with),
        operands_then: words(&written.operands_then),
        numeric: written.numeric,
        globs: written.globs,
        any: written.any,
        stops: written.stops,
        bundled: written.bundled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_readable_sourced_and_indexed() {
        for family in &FAMILIES {
            let written: HashMap<String, Written> = toml::from_str(family.text).unwrap();
            for (name, one) in &written {
                assert!(!one.source.is_empty(), "{name} has no source");
                let kinds = one.operands.split_whitespace().chain(one.operands_then.split_whitespace());
                for kind in kinds {
                    assert!(crate::readers::is_kind(kind.trim_end_matches(['*', '?'])), "{name}: operand kind {kind}");
                }
            }
            let entries = read(family.text).unwrap();
            for name in entries.keys() {
                let program = name.split(' ').next().unwrap();
                assert!(family.programs.contains(&program), "{name} is not in the index");
            }
            for program in family.programs {
                assert!(entries.contains_key(*program), "{program} is in the index only");
            }
        }
    }

    #[test]
    fn harm_wins_over_inert() {
        let entries = read("[x]\nsource = \"t\"\nflags = \"-o\"\nwrites = \"-o:\"").unwrap();
        assert_eq!(entries["x"].options["-o"].effect, Effect::Writes);
    }
}
