//! The signing key in the user's own git settings. A repository's settings are not read, because an
//! earlier command may have written them.
//!
//! This module must not know agents, nor grants.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::host_key::read_public_key;

/// Largest part of a file that is read.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Returns the public key that `user.signingkey` names, in the settings of the user with this home
/// directory. Files that these include are not read.
pub fn signing_key(home: &Path, settings_home: Option<&Path>) -> Option<Vec<u8>> {
    let of_git = settings_home.map_or_else(|| home.join(".config"), Path::to_owned).join("git/config");
    // As in git, `~/.gitconfig` takes precedence.
    let files = [home.join(".gitconfig"), of_git];
    let named = files.iter().find_map(|file| named_in(&text_of(file)?))?;
    key_of(&named, home)
}

fn key_of(named: &str, home: &Path) -> Option<Vec<u8>> {
    let literal = named.strip_prefix("key::").unwrap_or(named);
    if let Some(key) = read_public_key(literal) {
        return Some(key);
    }
    let path = match named.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(named),
    };
    // The public key is in a file beside the private key.
    let mut beside = path.clone().into_os_string();
    beside.push(".pub");
    [path, beside.into()].iter().filter(|path| path.is_absolute()).find_map(|path| read_public_key(&text_of(path)?))
}

fn text_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_SETTINGS_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the last `user.signingkey` of a file.
fn named_in(text: &str) -> Option<String> {
    let (mut is_user, mut named) = (false, None);
    for line in text.lines().map(str::trim) {
        let mut rest = line;
        if let Some((section, after)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            is_user = section.trim().eq_ignore_ascii_case("user");
            rest = after.trim();
        }
        if let Some((name, value)) = rest.split_once('=').filter(|_| is_user)
            && name.trim().eq_ignore_ascii_case("signingkey")
        {
            named = Some(value_of(value.trim()));
        }
    }
    named.filter(|named| !named.is_empty())
}

/// Returns a value without quotes and without a trailing comment.
fn value_of(text: &str) -> String {
    let (mut value, mut is_quoted, mut is_escaped) = (String::new(), false, false);
    for letter in text.chars() {
        match letter {
            _ if is_escaped => {
                value.push(letter);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '#' | ';' if !is_quoted => break,
            letter => value.push(letter),
        }
    }
    value.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_key::public_key_text;
    use crate::host_key::tests::TestKey;

    #[test]
    fn the_key_is_named_as_git_lets_it_be() {
        let home = tempfile::tempdir().unwrap();
        let key = TestKey::new(1).public_key_bytes();
        let text = public_key_text(&key).unwrap();
        std::fs::create_dir(home.path().join(".ssh")).unwrap();
        std::fs::write(home.path().join(".ssh/id.pub"), format!("{text} me@here\n")).unwrap();
        let absolute = home.path().join(".ssh/id.pub").display().to_string();
        for named in
            ["~/.ssh/id.pub", "~/.ssh/id", &absolute, &format!("key::{text}"), &text, "\"~/.ssh/id.pub\" # mine"]
        {
            let settings = format!("[core]\n\tsigningkey = no\n[User]\n name = x\n signingKey={named}\n");
            std::fs::write(home.path().join(".gitconfig"), settings).unwrap();
            assert_eq!(signing_key(home.path(), None), Some(key.clone()), "{named}");
        }
        for named in ["", "0xABCDEF", "~/.ssh/none", "id.pub"] {
            std::fs::write(home.path().join(".gitconfig"), format!("[user]\nsigningkey = {named}\n")).unwrap();
            assert_eq!(signing_key(home.path(), None), None, "{named}");
        }
    }

    #[test]
    fn the_other_file_counts_where_the_first_names_none() {
        let home = tempfile::tempdir().unwrap();
        let key = TestKey::new(1).public_key_bytes();
        std::fs::create_dir_all(home.path().join("settings/git")).unwrap();
        let text = format!("[user] signingkey = {}\n", public_key_text(&key).unwrap());
        std::fs::write(home.path().join("settings/git/config"), text).unwrap();
        assert_eq!(signing_key(home.path(), Some(&home.path().join("settings"))), Some(key));
        assert_eq!(signing_key(home.path(), None), None);
    }
}
