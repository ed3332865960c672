//! The supervisor process of a sandbox, from its start to its exit.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stockade_backend_api::{SandboxEvent, SandboxEventSender, SandboxPlan, StartError};
use stockade_model::SandboxId;
use stockade_permissions::guards::{SettingsVariables, use_settings_variables};
use stockade_supervisor::{
    Channel, EndSignal, REQUEST_TIMEOUT, Refusal, Reply, Request, Service, Supervisor, leave_creator,
    serve_remote_attempt,
};

use super::super::command::{CallerAttributes, SandboxCommandBackend};
use super::super::supervisor_state::HostedSandbox;
use super::event_clients::EventClients;

/// Callbacks of the program of a supervisor process.
pub struct SupervisorHooks {
    /// Receiver of the events, besides the clients of the sandbox.
    pub events: SandboxEventSender,
    /// Returns the time until the next call, or `None` if the sandbox must end: it has expired, or
    /// is no longer registered.
    pub next_check_delay: Box<dyn FnMut() -> Option<Duration>>,
}

impl std::fmt::Debug for SupervisorHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SupervisorHooks").finish_non_exhaustive()
    }
}

/// Runs a supervisor process, from its start to its exit. The program that
/// [`NativeSandboxes`](crate::NativeSandboxes) starts for its sandboxes must call this first. Receives
/// the plan from its creator, builds the isolation, keeps it, and returns when the sandbox has
/// ended. `begin` receives the sandbox's id and its directory.
///
/// # Errors
/// [`io::Error`] if standard input is no connection with a plan. Other errors are sent over it.
pub fn run_sandbox_supervisor(
    begin: impl FnOnce(&SandboxId, &Path) -> Result<SupervisorHooks, StartError>,
) -> io::Result<()> {
    let creator = leave_creator()?;
    let order = creator.receive_order::<(SandboxPlan, SettingsVariables)>(Some(REQUEST_TIMEOUT))?;
    let ((plan, variables), along) = order.ok_or(io::ErrorKind::InvalidData)?;
    use_settings_variables(variables);
    let [directory] = <[OwnedFd; 1]>::try_from(along).map_err(|_| io::ErrorKind::InvalidData)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).read_link()?;
    let made = begin(&plan.id, &path).and_then(|hooks| {
        let end = Arc::new(EndSignal::new().map_err(start_error)?);
        let service = Arc::new(SandboxService::build_sandbox(&plan, hooks.events, Arc::clone(&end))?);
        // Clients can find the sandbox from here on.
        let supervisor =
            Supervisor::listen_in(&path, Arc::<SandboxService>::clone(&service), end).map_err(start_error)?;
        Ok((supervisor, service, hooks.next_check_delay))
    });
    match made {
        Ok((supervisor, service, next_check_delay)) => {
            // A creator that is gone can find the sandbox by its name.
            let _ = creator.send(&Ok::<(), StartError>(()));
            drop(creator);
            supervisor.serve_until_end(next_check_delay, || service.end_sandbox());
            Ok(())
        }
        Err(error) => creator.send(&Err::<(), StartError>(error)),
    }
}

fn start_error(error: io::Error) -> StartError {
    StartError { what: format!("cannot supervise the sandbox: {error}"), hint: None }
}

/// The sandbox, for its clients.
struct SandboxService {
    hosted_sandbox: Arc<HostedSandbox>,
    watchers: Arc<EventClients>,
    end: Arc<EndSignal>,
}

impl SandboxService {
    /// Builds the sandbox. Its events are sent to `own` and to all watching clients. If it is lost,
    /// the supervisor ends too.
    fn build_sandbox(plan: &SandboxPlan, own: SandboxEventSender, end: Arc<EndSignal>) -> Result<Self, StartError> {
        let watchers = Arc::new(EventClients::default());
        let (event_clients, end_on_loss) = (Arc::clone(&watchers), Arc::clone(&end));
        let events = SandboxEventSender::new(move |event| {
            event_clients.send_event(&event);
            let is_lost = matches!(event, SandboxEvent::Lost(_));
            own.send_event(event);
            if is_lost {
                end_on_loss.request_end(None);
            }
        });
        let hosted_sandbox = Arc::new(HostedSandbox::build_and_monitor(plan, events, None)?);
        Ok(Self { hosted_sandbox, watchers, end })
    }

    fn end_sandbox(&self) -> Reply<()> {
        let done = self.hosted_sandbox.end_sandbox();
        self.watchers.close();
        done.map_err(Refusal::from)
    }
}

impl Service for SandboxService {
    fn handle_request(&self, request: Request, along: Vec<OwnedFd>, channel: Channel) -> io::Result<()> {
        match request {
            Request::Enforced => channel.send(&Reply::Ok(&self.hosted_sandbox.enforced)),
            Request::Pause => channel.send(&self.hosted_sandbox.pause().map_err(Refusal::from)),
            Request::Resume => channel.send(&self.hosted_sandbox.resume().map_err(Refusal::from)),
            Request::Usage => channel.send(&self.hosted_sandbox.read_usage().map_err(Refusal::from)),
            Request::Watch => {
                self.watchers.serve_client(&channel);
                Ok(())
            }
            Request::Run(order) => {
                let streams = along.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
                let caller = CallerAttributes { streams: Some(streams), umask: Some(order.umask) };
                let backend = SandboxCommandBackend::new(Arc::clone(&self.hosted_sandbox));
                serve_remote_attempt(channel, |events| {
                    backend.begin_command(&order.plan, order.io, order.hold, events, caller)
                })
            }
            Request::End(_) => {
                self.end.request_end(Some(channel));
                Ok(())
            }
            Request::Exec(_) | Request::Attach { .. } => channel.send(&Reply::<()>::Err(Refusal::unknown_request())),
        }
    }
}
