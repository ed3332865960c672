//! The ssh agent of a run with a grant to sign. Provides the variables and files by which the run
//! finds it, and reports its signatures and refusals.
//!
//! This module must not know the agent protocol or the answers to trapped connects.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stockade_backend_api::{AttemptEvent, StartError};
use stockade_launch::{LaunchOptions, NamedFile, NamingVariable};
use stockade_model::{
    AttemptPlan, Denial, DenialLayer, DeniedOperation, Grant, IsolationLevel, LayerReport, LayerState, RawText, SignUse,
};
use stockade_permissions::{AGENT_PATH, AgentSockets};
use stockade_signing::{AgentError, AgentHandle, AgentListener, SigningEvent, UserSshAgent};

use crate::errors::map_hinted_error;
use crate::run_monitor::RunEventSink;

/// The variable that names an agent's socket.
const AGENT_VARIABLE: &str = "SSH_AUTH_SOCK";
/// The file of known servers in the run's own directory.
const KNOWN_HOSTS: &str = "stockade-known-hosts";
/// The user's file of known servers, beneath the home directory.
const USER_KNOWN_HOSTS: &str = ".ssh/known_hosts";
/// The variable that names the file of known servers.
const KNOWN_HOSTS_VARIABLE: &str = "STOCKADE_KNOWN_HOSTS";
/// The variable with a command that git uses in place of `ssh`.
const GIT_SSH_VARIABLE: &str = "GIT_SSH_COMMAND";
/// The variable with the number of git settings in variables.
const GIT_COUNT_VARIABLE: &str = "GIT_CONFIG_COUNT";

/// The user whose keys may sign for runs.
#[derive(Clone, Debug)]
pub struct SigningUser {
    /// The socket of the user's agent, if there is one.
    pub agent: Option<PathBuf>,
    /// The user's home directory, with the known servers.
    pub home: PathBuf,
}

/// The agent of one run, before it answers.
pub(crate) struct RunSigningAgent {
    listener: Option<AgentListener>,
    person: Option<SigningUser>,
}

impl RunSigningAgent {
    /// Makes the agent for the grants of a plan, if it has any.
    pub(crate) fn from_plan(plan: &AttemptPlan, person: Option<&SigningUser>) -> Result<Self, StartError> {
        let uses: Vec<SignUse> = plan.grants.iter().filter_map(Grant::sign_use).cloned().collect();
        let listener = match person {
            Some(person) if !uses.is_empty() => {
                let socket = person.agent.as_ref().ok_or_else(|| map_hinted_error(AgentError::None))?;
                let directories = (person.home.as_path(), std::env::temp_dir());
                let prepared = AgentListener::prepare_agent(
                    &uses,
                    UserSshAgent::at_socket(socket),
                    (directories.0, &directories.1),
                )
                .map_err(map_hinted_error)?;
                Some(prepared)
            }
            _ => None,
        };
        Ok(Self { listener, person: person.cloned() })
    }

    /// Returns the agent sockets for the broker.
    pub(crate) fn agent_sockets(&self) -> AgentSockets {
        AgentSockets::new(
            self.person.as_ref().and_then(|person| person.agent.clone()),
            self.listener.as_ref().map(AgentListener::socket),
        )
    }

    /// Adds the variables by which the run finds its agent, and the servers that it may know.
    pub(crate) fn add_variables(&self, plan: &AttemptPlan, options: &mut LaunchOptions) {
        let Some(listener) = &self.listener else { return };
        options.environment.insert(AGENT_VARIABLE.to_owned(), AGENT_PATH.into());
        if let Some(key) = listener.git_key() {
            options.environment.extend(git_settings(&plan.environment, key));
        }
        if listener.known_hosts().is_empty() {
            return;
        }
        let content = listener.known_hosts().as_bytes().to_vec();
        let mut variables = vec![NamingVariable::path_only(KNOWN_HOSTS_VARIABLE)];
        if !plan.environment.contains_key(GIT_SSH_VARIABLE) {
            // The outer quotes are for the shell, the inner ones for ssh.
            let (before, after) = ("ssh -o 'UserKnownHostsFile=\"", "\"'");
            variables.push(NamingVariable { name: GIT_SSH_VARIABLE.to_owned(), before, after });
        }
        // With a mount namespace of its own, the run has the file at ssh's default path.
        let of_person = self.person.iter().map(|person| person.home.join(USER_KNOWN_HOSTS));
        let replaced = of_person.filter(|path| plan.level == IsolationLevel::Full && path.is_file());
        options.files.extend(replaced.map(|path| (path, content.clone())));
        options.named.push(NamedFile { name: KNOWN_HOSTS, content, variables });
    }

    /// Starts answering. Events are reported until the run ends.
    pub(crate) fn start_serving(self, event_sink: &RunEventSink) -> Result<Option<AgentHandle>, StartError> {
        let event_sink = event_sink.clone();
        let sink = move |event| event_sink.report_event(event_of(event));
        self.listener.map(|listener| listener.start_serving(sink).map_err(map_hinted_error)).transpose()
    }
}

/// Returns the enforcement report on the keys of a plan, if it has any.
pub(crate) fn signing_layer(plan: &AttemptPlan) -> Option<(String, LayerReport)> {
    let uses: Vec<String> = plan.grants.iter().filter_map(Grant::sign_use).map(ToString::to_string).collect();
    let detail = format!("a private ssh agent of the run signs: {}; it forwards nothing else", uses.join(", "));
    let report = LayerReport { state: LayerState::Enforced, detail };
    (!uses.is_empty()).then(|| ("ssh-agent".to_owned(), report))
}

/// Returns the variables by which git signs with this key, after those of the plan. The user's
/// settings may name a file that no run can read.
fn git_settings(environment: &BTreeMap<String, RawText>, key: &str) -> Vec<(String, RawText)> {
    let before = environment.get(GIT_COUNT_VARIABLE).map_or(Some("0"), RawText::to_str);
    let Some(before) = before.and_then(|count| count.parse::<u16>().ok()) else { return Vec::new() };
    let settings = [("gpg.format", "ssh".to_owned()), ("user.signingkey", format!("key::{key}"))];
    let mut all =
        vec![(GIT_COUNT_VARIABLE.to_owned(), RawText::from((usize::from(before) + settings.len()).to_string()))];
    for (index, (name, value)) in (usize::from(before)..).zip(settings) {
        all.push((format!("GIT_CONFIG_KEY_{index}"), name.into()));
        all.push((format!("GIT_CONFIG_VALUE_{index}"), RawText::from(value)));
    }
    all
}

fn event_of(event: SigningEvent) -> AttemptEvent {
    match event {
        SigningEvent::Signed(signed) => {
            AttemptEvent::Signed { grant: signed.key_use.into_grant(), object: RawText::from(signed.object) }
        }
        SigningEvent::Refused(refused) => AttemptEvent::Denied(Denial::of_unknown_process(
            // The broker connects for the run, so no process is behind the socket.
            DeniedOperation::Sign,
            RawText::from(refused.object),
            DenialLayer::Agent,
            refused.rule,
            refused.key_use.map(SignUse::into_grant),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_git_come_after_those_that_are_there() {
        let shown = |count: Option<&str>| {
            let environment = count.map(|count| (GIT_COUNT_VARIABLE.to_owned(), RawText::from(count))).into_iter();
            let settings = git_settings(&environment.collect(), "ssh-ed25519 AAAA");
            settings.iter().map(|(name, value)| format!("{name}={}", value.to_escaped())).collect::<Vec<_>>().join(" ")
        };
        let expected = |count: u16, first: u16, second: u16| {
            format!(
                "GIT_CONFIG_COUNT={count} GIT_CONFIG_KEY_{first}=gpg.format GIT_CONFIG_VALUE_{first}=ssh \
                 GIT_CONFIG_KEY_{second}=user.signingkey GIT_CONFIG_VALUE_{second}=key::ssh-ed25519 AAAA"
            )
        };
        assert_eq!(shown(None), expected(2, 0, 1));
        assert_eq!(shown(Some("3")), expected(5, 3, 4));
        // Git itself fails if the count is not a number.
        assert_eq!(shown(Some("many")), "");
    }
}
