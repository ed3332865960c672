//! Content of git's files that are neither settings nor an index: references and the steps of a
//! rebase. Git takes their content for names of its own files. Pure.

use super::settings_words::is_branch;
use stockade_model::NameList;

/// Lengths of an object's name, in hexadecimal digits (SHA-1, SHA-256).
const OBJECT_ID_LENGTHS: [usize; 2] = [40, 64];

/// Initial content of `HEAD` that `git clone` writes; no reference can have this name.
const CLONE_HEAD: &[u8] = b"ref: refs/heads/.invalid";

/// Returns whether a reference names an object or another reference. Git 2.47 does not check the
/// name of another reference before it writes there and appends to a log of that name.
pub fn is_reference(text: &[u8]) -> bool {
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    is_id(line) || line == CLONE_HEAD || line.strip_prefix(b"ref: ").is_some_and(is_name_of_reference)
}

/// Returns whether the text names the start of a bisection. Such a name cannot be an option.
pub fn is_start_of_bisection(text: &[u8]) -> bool {
    let line = text.strip_suffix(b"\n").unwrap_or(text);
    is_id(line) || is_branch(line)
}

fn is_id(text: &[u8]) -> bool {
    OBJECT_ID_LENGTHS.contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether the name is valid beneath `refs/` (git-check-ref-format(1)).
fn is_name_of_reference(name: &[u8]) -> bool {
    let is_odd = |b: &u8| b.is_ascii_control() || b" ~^:?*[\\".contains(b);
    let holds = |pair: &[u8; 2]| name.windows(2).any(|part| part == pair);
    name.starts_with(b"refs/")
        && !name.iter().any(is_odd)
        && !holds(b"..")
        && !holds(b"@{")
        && !name.ends_with(b".")
        && name
            .split(|b| *b == b'/')
            .all(|part| !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock"))
}

/// Returns whether no step of a rebase (git-rebase(1)) runs a command.
pub fn are_harmless_steps(text: &[u8]) -> bool {
    const HARMLESS_COMMANDS: NameList = NameList::new(include_str!("../../knowledge/git_rebase_steps.txt"));
    text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).all(|line| {
        let step = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        line.is_empty() || line.starts_with(b"#") || HARMLESS_COMMANDS.contains(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_stay_among_references() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        for text in [
            id,
            &format!("{id}\n"),
            "ref: refs/heads/main\n",
            "ref: refs/remotes/o/HEAD",
            "ref: refs/heads/a.b",
            "ref: refs/heads/.invalid",
        ] {
            assert!(is_reference(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "\n",
            "x",
            &id[1..],
            &format!("{id} x"),
            &format!("{id}\n\n"),
            "ref: ../x",
            "ref: refs/../../x",
            "ref: refs/heads/../x",
            "ref: refs/heads/.x",
            "ref: refs//x",
            "ref: refs/heads/x.lock",
            "ref: refs/heads/x\n\n",
            "ref: refs/heads/x y",
            "ref: refs/heads/x\0",
            "ref: HEAD",
            "ref:refs/heads/x",
            "ref:  refs/heads/x",
            "ref: refs/",
            "ref: /refs/x",
        ] {
            assert!(!is_reference(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_bisection_begins_at_a_name() {
        let check = |text: &str| is_start_of_bisection(text.as_bytes());
        assert!(check("main\n") && check("0123456789abcdef0123456789abcdef01234567") && check("a/b"));
        assert!(!check("--orphan=x\n") && !check("") && !check("a\nb") && !check("a b") && !check("../x"));
    }

    #[test]
    fn steps_that_run_commands() {
        assert!(are_harmless_steps(b"pick 12 x\nlabel onto\n\n# exec x\nmerge -C 1 x\n  fixup 1\n"));
        for text in ["exec x", "pick 1\nx make", "  x y", "EXEC x", "execx", "; x", "pick 1\n\texec y"] {
            assert!(!are_harmless_steps(text.as_bytes()), "{text}");
        }
    }
}
