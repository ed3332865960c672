//! The index of a repository: the files that git writes at the user's next checkout
//! (gitformat-index(5)). Git does not check its names again: a file named
//! `.git/hooks/post-checkout` is written there, and run. Pure.

use std::collections::HashSet;

use super::settings_words::are_names;

/// Bytes of an entry before its name, with object names of 20 bytes.
const ENTRY_BYTES: usize = 62;
const HASH_BYTES: usize = 20;
const NAME_MASK: usize = 0xfff;
/// Flag of an entry with two more bytes.
const EXTENDED_FLAG: usize = 0x4000;
/// Extensions that do not affect the location of files: cached trees, resolved conflicts and
/// untracked files.
const HARMLESS_EXTENSIONS: [&[u8]; 3] = [b"TREE", b"REUC", b"UNTR"];

/// Returns whether every file of the index is in the work tree and outside every repository, and
/// all its extensions are known.
pub fn is_harmless(text: &[u8]) -> bool {
    check_index(text).is_some()
}

fn check_index(text: &[u8]) -> Option<()> {
    let end = text.len().checked_sub(HASH_BYTES)?;
    let (header, version, count) = (text.get(..4)?, read_u32(text, 4)?, read_u32(text, 8)?);
    if header != b"DIRC" || !matches!(version, 2 | 3) {
        return None;
    }
    let mut at = 12;
    let mut files: HashSet<&[u8]> = HashSet::new();
    for _ in 0..count {
        let flags = usize::from(text.get(at + 60..end)?.first_chunk::<2>().map(|b| u16::from_be_bytes(*b))?);
        let is_extended = flags & EXTENDED_FLAG != 0;
        if is_extended && version < 3
            || !matches!(read_u32(text, at + 24)?, 0o100_644 | 0o100_755 | 0o120_000 | 0o160_000)
        {
            return None;
        }
        let start = ENTRY_BYTES + if is_extended { 2 } else { 0 };
        let rest = text.get(at + start..end)?;
        let length = rest.iter().position(|b| *b == 0)?;
        // A name that differs from its recorded length could be read in two ways.
        if length.min(NAME_MASK) != flags & NAME_MASK || !are_names(&rest[..length]) {
            return None;
        }
        files.insert(&rest[..length]);
        at += (start + length + 8) & !7;
    }
    // No path is beneath a file, because the file could be a link.
    let is_beneath = |file: &&[u8]| (1..file.len()).any(|at| file[at] == b'/' && files.contains(&file[..at]));
    if files.iter().any(is_beneath) {
        return None;
    }
    while at < end {
        let (kind, size) = (text.get(at..at + 4)?, usize::try_from(read_u32(text, at + 4)?).ok()?);
        if !HARMLESS_EXTENSIONS.contains(&kind) {
            return None;
        }
        at = at.checked_add(8 + size)?;
    }
    (at == end).then_some(())
}

fn read_u32(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, mode: u32) -> Vec<u8> {
        let mut entry = vec![0; 24];
        entry.extend(mode.to_be_bytes());
        entry.extend([0; 32]);
        entry.extend(u16::try_from(path.len().min(NAME_MASK)).unwrap().to_be_bytes());
        entry.extend(path.as_bytes());
        entry.resize((entry.len() + 8) & !7, 0);
        entry
    }

    fn index(version: u32, paths: &[&str], extension: &[u8]) -> Vec<u8> {
        let mut text = b"DIRC".to_vec();
        text.extend(version.to_be_bytes());
        text.extend(u32::try_from(paths.len()).unwrap().to_be_bytes());
        paths.iter().for_each(|path| text.extend(entry(path, 0o100_644)));
        text.extend(extension);
        text.extend([0; HASH_BYTES]);
        text
    }

    #[test]
    fn files_of_the_work_tree_and_no_others() {
        let long = "l/".repeat(3000) + "b";
        assert!(is_harmless(&index(2, &[], b"")));
        assert!(is_harmless(&index(2, &["a", "b/c", ".gitignore", &long], b"TREE\0\0\0\x01x")));
        for path in [
            ".git/hooks/x",
            "a/.git/config",
            ".GIT/x",
            ".g\u{200c}it/x",
            "git~1/x",
            "../x",
            "/x",
            "a//b",
            "./a",
            "",
            ".git",
            ".git. /x",
        ] {
            assert!(!is_harmless(&index(2, &["a", path], b"")), "{path}");
        }
        assert!(!is_harmless(&index(2, &["a", "a/b"], b"")), "beneath a file");
    }

    #[test]
    fn ambiguous_settings_are_not_harmless() {
        let good = index(2, &["abc"], b"");
        assert!(is_harmless(&good));
        assert!(!is_harmless(&index(4, &[], b"")));
        for extension in [&b"link\0\0\0\0"[..], b"sdir\0\0\0\0", b"IEOT\0\0\0\0", b"TREE\0\0\0\x09x", b"TREE"] {
            assert!(!is_harmless(&index(2, &["abc"], extension)));
        }
        let mut shorter = good.clone();
        shorter[12 + 61] = 2;
        assert!(!is_harmless(&shorter), "a name that is longer than it says");
        (0..good.len()).for_each(|length| assert!(!is_harmless(&good[..length])));
        let mut more = good;
        more[11] = 2;
        assert!(!is_harmless(&more));
    }
}
