//! Resolves the names of signing grants, `@git-signing` and `@ssh:HOST[:PORT]`, to a key of the
//! user's ssh agent, by its fingerprint. From here on only that grant counts.
//!
//! Reads the user's agent and their own git settings; signs nothing.

use std::path::PathBuf;

use stockade_model::{Grant, KeyFingerprint, NetworkTarget, RawText, SignPurpose, SignUse, shell_quoted, ssh_target};
use stockade_signing::{AgentError, AgentIdentity, UserSshAgent, compute_fingerprint, signing_key};

use crate::failure::CliError;
use crate::locations::{self, VariableLookup};

const GIT_SIGNING_NAME: &str = "@git-signing";
const SSH_NAME: &str = "@ssh";
/// Most keys that an error lists.
const MAX_LISTED_KEYS: usize = 10;

/// Returns whether a text is such a name.
pub fn is_one(text: &str) -> bool {
    text == GIT_SIGNING_NAME || text == SSH_NAME || text.starts_with("@ssh:")
}

/// Returns the socket of the user's agent, if the environment names one.
pub fn find_agent_socket(variables: VariableLookup<'_>) -> Option<PathBuf> {
    variables("SSH_AUTH_SOCK").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns the grants of such a name.
///
/// # Errors
/// [`CliError`] if it names no host, or if it does not determine the key.
pub fn resolve_grants(name: &str, variables: VariableLookup<'_>) -> Result<Vec<Grant>, CliError> {
    if name == GIT_SIGNING_NAME {
        let key = key_for_git(variables)?;
        return Ok(vec![SignUse::new(key, SignPurpose::Git).into_grant()]);
    }
    let target = name.strip_prefix("@ssh:").ok_or("name the host");
    let target = target.and_then(ssh_target).map_err(|why| {
        let shown = RawText::from(name).to_escaped();
        CliError::new(format!("`{shown}` is not a grant: {why}")).with_hint("for example --grant @ssh:github.com")
    })?;
    let keys = list_identities(variables)?;
    let key = only_key(&keys, &|key| for_host(key, &target))?;
    Ok(for_host(&key, &target))
}

/// Returns the key that the user's git settings name, or the only one of the agent.
fn key_for_git(variables: VariableLookup<'_>) -> Result<KeyFingerprint, CliError> {
    let keys = list_identities(variables)?;
    let settings = variables("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let named = signing_key(&locations::find_home_directory(variables)?, settings.as_deref())
        .and_then(|key| compute_fingerprint(&key));
    match named {
        None => only_key(&keys, &|key| vec![SignUse::new(key.clone(), SignPurpose::Git).into_grant()]),
        Some(named) if keys.iter().any(|key| key.fingerprint == named) => Ok(named),
        Some(named) => {
            Err(CliError::new(format!("the key that git's `user.signingkey` names ({named}) is not in the ssh agent"))
                .with_hint("add it: ssh-add FILE, where FILE is the private key"))
        }
    }
}

fn list_identities(variables: VariableLookup<'_>) -> Result<Vec<AgentIdentity>, CliError> {
    let socket = find_agent_socket(variables).ok_or(AgentError::None)?;
    Ok(UserSshAgent::at_socket(socket).list_identities()?)
}

fn for_host(key: &KeyFingerprint, target: &NetworkTarget) -> Vec<Grant> {
    vec![SignUse::new(key.clone(), SignPurpose::Host(target.clone())).into_grant(), Grant::connect_to(target)]
}

/// Returns the key if there is only one; otherwise the error shows the grants of `grants_of` as an
/// example.
fn only_key(
    keys: &[AgentIdentity],
    grants_of: &dyn Fn(&KeyFingerprint) -> Vec<Grant>,
) -> Result<KeyFingerprint, CliError> {
    let first = match keys {
        [] => return Err(CliError::new("the ssh agent has no key").with_hint("add one: ssh-add")),
        [one] => return Ok(one.fingerprint.clone()),
        [first, ..] => first,
    };
    let mut what = format!("the ssh agent has {} keys, and the grant does not say which one:", keys.len());
    for key in keys.iter().take(MAX_LISTED_KEYS) {
        what.push_str(&format!("\n  {}  {}", key.fingerprint, RawText::from(key.comment.as_str()).to_escaped()));
    }
    if keys.len() > MAX_LISTED_KEYS {
        what.push_str("\n  ... (ssh-add -l lists all)");
    }
    let options: Vec<_> = grants_of(&first.fingerprint)
        .iter()
        .map(|grant| format!("--grant {}", shell_quoted(&grant.to_string())))
        .collect();
    Err(CliError::new(what).with_hint(format!("name one, for example: {}", options.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(last: char) -> AgentIdentity {
        let fingerprint = format!("SHA256:{}{last}", "a".repeat(42)).parse().unwrap();
        AgentIdentity { fingerprint, key: Vec::new(), comment: "me@here\n".to_owned() }
    }

    #[test]
    fn one_key_is_used_and_of_several_one_must_be_named() {
        let target = ssh_target("github.com").unwrap();
        let grants_of = |key: &KeyFingerprint| for_host(key, &target);
        assert_eq!(only_key(&[identity('A')], &grants_of).unwrap(), identity('A').fingerprint);
        assert!(only_key(&[], &grants_of).unwrap_err().hint.unwrap().contains("ssh-add"));
        let several = only_key(&[identity('A'), identity('E')], &grants_of).unwrap_err();
        assert!(several.what.contains("aE  me@here\\n"), "{}", several.what);
        let hint = several.hint.unwrap();
        assert!(hint.contains("aA to github.com' --grant 'connect github.com:22'"), "{hint}");
    }

    #[test]
    fn incomplete_names_are_refused_with_an_example() {
        for (name, why) in [
            ("@ssh", "name the host"),
            ("@ssh:", "a name has 1 to 253 characters"),
            ("@ssh:*", "a key authenticates to one host: name it"),
        ] {
            let failure = resolve_grants(name, &|_| None).unwrap_err();
            assert_eq!(failure.what, format!("`{name}` is not a grant: {why}"));
            assert!(failure.hint.is_some());
        }
        let failure = resolve_grants("@git-signing", &|_| None).unwrap_err();
        assert!(failure.what.contains("SSH_AUTH_SOCK") && failure.hint.unwrap().contains("ssh-add"));
        assert!(!is_one("@sshd") && !is_one("@github"));
    }
}
