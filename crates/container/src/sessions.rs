//! Processes that were started in a container besides its first. Each must be a launcher of
//! Stockade. Another user of the engine may have started one with more privileges.

use bollard::models::{ContainerInspectResponse, ExecInspectResponse};
use stockade_backend_api::StartError;

use crate::client::{CALL_TIMEOUT, ContainerClient, none_if_missing};
use crate::spec::{ContainerUser, LAUNCHER_PATH, LAUNCHER_WORD};

/// Most sessions that are checked; fewer commands than this run at a time.
const SESSIONS_MAX: usize = 1_000;

/// Refuses a container with a process that Stockade did not start.
///
/// # Errors
/// [`StartError`] if there is one, or the engine does not answer.
pub(crate) fn require_own(
    client: &ContainerClient,
    user: ContainerUser,
    found: &ContainerInspectResponse,
) -> Result<(), StartError> {
    let sessions = found.exec_ids.clone().unwrap_or_default();
    if sessions.len() > SESSIONS_MAX {
        return Err(foreign_process_error("there are too many of them"));
    }
    let looked_at = client.call(CALL_TIMEOUT, |docker| async move {
        let mut all = Vec::with_capacity(sessions.len());
        for session in sessions {
            // The session may have ended meanwhile.
            all.extend(none_if_missing(docker.inspect_exec(&session).await)?);
        }
        Ok(all)
    });
    let looked_at = looked_at.map_err(|error| error.to_start_error("look at the processes of the container"))?;
    match looked_at.iter().filter(|session| session.running != Some(false)).find(|session| !is_own(user, session)) {
        None => Ok(()),
        Some(session) => {
            let process = session.process_config.as_ref();
            let program = process.and_then(|process| process.entrypoint.as_deref()).unwrap_or("a program");
            Err(foreign_process_error(&program.escape_default().to_string()))
        }
    }
}

fn is_own(user: ContainerUser, session: &ExecInspectResponse) -> bool {
    let Some(process) = &session.process_config else { return false };
    // Podman does not separate the entry point from the arguments.
    let words: Vec<&str> =
        process.entrypoint.iter().chain(process.arguments.iter().flatten()).map(String::as_str).collect();
    process.privileged != Some(true)
        && process.user.as_deref() == Some(&user.to_string())
        && words.first() == Some(&LAUNCHER_PATH)
        && words.get(1) == Some(&LAUNCHER_WORD)
}

fn foreign_process_error(what: &str) -> StartError {
    StartError {
        what: format!("processes run in the container that Stockade did not start: {what}"),
        hint: Some("end them, or destroy the sandbox; no command ran".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProcessConfig;

    use super::*;

    #[test]
    fn launchers_of_the_sandboxs_user_are_its_own_and_nothing_else() {
        let user = ContainerUser { user: 7, group: 8 };
        let session = |words: &[&str], owner: &str, privileged| ExecInspectResponse {
            process_config: Some(ProcessConfig {
                privileged: Some(privileged),
                user: Some(owner.to_owned()),
                entrypoint: words.first().map(|&word| word.to_owned()),
                arguments: Some(words.iter().skip(1).map(|&word| word.to_owned()).collect()),
                ..ProcessConfig::default()
            }),
            ..ExecInspectResponse::default()
        };
        assert!(is_own(user, &session(&[LAUNCHER_PATH, "inside", "serve"], "7:8", false)));
        for (words, owner, privileged) in [
            (&["/bin/sh"][..], "7:8", false),
            (&[LAUNCHER_PATH, "inside", "serve"], "0:0", false),
            (&[LAUNCHER_PATH, "inside", "serve"], "", false),
            (&[LAUNCHER_PATH, "inside", "serve"], "7:8", true),
            (&[LAUNCHER_PATH, "run", "sh"], "7:8", false),
            (&[], "7:8", false),
        ] {
            assert!(!is_own(user, &session(words, owner, privileged)), "{words:?} {owner}");
        }
        assert!(!is_own(user, &ExecInspectResponse::default()));
    }
}
