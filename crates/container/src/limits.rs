//! Enforcement of each limit of a sandbox, and its report. The engine enforces a limit for all
//! commands together, the kernel for each process, or a supervisor in the container for each
//! command.

use stockade_backend_api::StartError;
use stockade_model::{LayerReport, LayerState, LimitKind, Limits};

/// Processes that a container may have besides those of commands, threads included: its first
/// process, and the launchers of several commands.
const SERVICE_PROCESSES: u64 = 128;

/// Part that enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitEnforcer {
    /// The engine, for all commands together.
    Engine,
    /// The kernel, for each process.
    Process,
    /// The size of the private filesystem.
    Filesystem,
    /// The clock of the process that runs a command.
    Clock,
    /// The reader of the output.
    Capture,
    /// The isolation in the container, for each command separately.
    Command,
    /// The engine was asked, but a runtime with its own kernel counts by itself.
    Unseen,
    /// Nothing.
    Nothing,
}

impl LimitEnforcer {
    fn for_limit(limit: LimitKind, has_isolation: bool) -> Self {
        match limit {
            LimitKind::Memory | LimitKind::Processes | LimitKind::Cpus if has_isolation => Self::Engine,
            LimitKind::Memory | LimitKind::Processes | LimitKind::Cpus => Self::Unseen,
            LimitKind::OpenFiles | LimitKind::FileSize => Self::Process,
            LimitKind::Temp => Self::Filesystem,
            LimitKind::Wall => Self::Clock,
            LimitKind::Output => Self::Capture,
            LimitKind::CpuTime | LimitKind::Disk | LimitKind::Inodes if has_isolation => Self::Command,
            LimitKind::CpuTime | LimitKind::Disk | LimitKind::Inodes | LimitKind::Io => Self::Nothing,
        }
    }

    /// Returns how it enforces a limit, and whether the request is fulfilled completely.
    fn describe_limit(self, limit: LimitKind) -> (String, bool) {
        let (text, is_whole) = match self {
            Self::Engine if limit == LimitKind::Processes => {
                return (format!("container, plus {SERVICE_PROCESSES} threads for the launcher"), true);
            }
            Self::Engine => ("container", true),
            Self::Process => ("each process", true),
            Self::Filesystem => ("size of its filesystem", true),
            Self::Clock => ("clock", true),
            Self::Capture => ("kept output", true),
            Self::Command => ("watched for each command separately", false),
            Self::Unseen => ("requested from the engine; Stockade cannot check whether its runtime enforces it", false),
            Self::Nothing => ("not held", false),
        };
        (text.to_owned(), is_whole)
    }
}

/// Refuses limits that no container can enforce.
///
/// # Errors
/// [`StartError`] for the first of them.
pub(crate) fn require_enforced(limits: &Limits) -> Result<(), StartError> {
    let unsupported_limit = limits.iter_limits().find(|(limit, _)| *limit == LimitKind::Io);
    refuse_limit(
        unsupported_limit,
        "a container cannot enforce the limit LIMIT",
        "remove NAME, or create a native sandbox",
    )
}

/// Refuses limits that were requested explicitly and that nothing enforces without the native
/// isolation. Limits that every profile has are reported as not enforced.
///
/// # Errors
/// [`StartError`] for the first of them.
pub(crate) fn require_limits_without_isolation(limits: &Limits) -> Result<(), StartError> {
    let unsupported_limit =
        limits.iter_limits().find(|(limit, _)| matches!(limit, LimitKind::CpuTime | LimitKind::Inodes));
    let what = "the limit LIMIT cannot be enforced, because the kernel has no Landlock";
    refuse_limit(unsupported_limit, what, "remove NAME, or use another container runtime")
}

/// Refuses limits of one command that are lower than its sandbox's, if nothing in the container
/// could enforce them.
///
/// # Errors
/// [`StartError`] for the first of them.
pub(crate) fn require_no_lower(of_sandbox: &Limits, of_command: &Limits) -> Result<(), StartError> {
    let is_held =
        |limit| matches!(LimitEnforcer::for_limit(limit, false), LimitEnforcer::Clock | LimitEnforcer::Capture);
    let mut lower =
        of_command.iter_limits().filter(|(limit, amount)| of_sandbox.get(*limit).is_none_or(|all| all > *amount));
    let what = "the limit LIMIT cannot be enforced for one command of this sandbox";
    refuse_limit(lower.find(|(limit, _)| !is_held(*limit)), what, "create a sandbox with it, or remove NAME")
}

/// Refuses a limit, if there is one. In the texts, LIMIT stands for it and its amount, and NAME for it alone.
fn refuse_limit(refused: Option<(LimitKind, u64)>, what: &str, hint: &str) -> Result<(), StartError> {
    let Some((limit, amount)) = refused else { return Ok(()) };
    Err(StartError {
        what: what.replace("LIMIT", &format!("{limit} {}", limit.format_amount(amount))),
        hint: Some(hint.replace("NAME", limit.name())),
    })
}

/// Returns the number of processes that the engine permits in a container.
pub(crate) fn engine_process_limit(limits: &Limits) -> Option<u64> {
    limits.processes.map(|processes| processes.saturating_add(SERVICE_PROCESSES))
}

/// Returns the layer of the enforcement report. `has_isolation`: the native isolation works in the
/// container.
pub(crate) fn layer_report(limits: &Limits, has_isolation: bool) -> LayerReport {
    let mut parts = vec!["no core dumps".to_owned()];
    let mut whole = true;
    for (limit, amount) in limits.iter_limits() {
        let (how, is_whole) = LimitEnforcer::for_limit(limit, has_isolation).describe_limit(limit);
        whole &= is_whole;
        parts.push(format!("{limit} {}: {how}", limit.format_amount(amount)));
    }
    let state = if whole { LayerState::Enforced } else { LayerState::Partial };
    LayerReport { state, detail: parts.join("; ") }
}

/// Returns the limits that a command's own isolation enforces. A limit that the container enforces
/// for all commands is included only if the command has less. A limit that it cannot enforce for
/// all is enforced for each.
pub(crate) fn command_limits(of_sandbox: &Limits, of_command: &Limits) -> Limits {
    let mut inside = Limits::default();
    for limit in LimitKind::ALL {
        let (all, one) = (of_sandbox.get(limit), of_command.get(limit));
        let amount = match LimitEnforcer::for_limit(limit, true) {
            LimitEnforcer::Engine => one.filter(|_| one != all),
            LimitEnforcer::Command => one.into_iter().chain(all).min(),
            _ => one,
        };
        amount.into_iter().for_each(|amount| inside.set_limit(limit, amount));
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Limits {
        let mut limits = Limits::default();
        LimitKind::ALL.into_iter().for_each(|limit| limits.set_limit(limit, 4096));
        limits
    }

    #[test]
    fn every_limit_is_reported_once_and_a_missing_one_makes_it_partial() {
        for has_isolation in [true, false] {
            let report = layer_report(&every(), has_isolation);
            assert_eq!(report.state, LayerState::Partial);
            for limit in LimitKind::ALL {
                let line = format!("{limit} {}: ", limit.format_amount(4096));
                assert_eq!(report.detail.matches(&line).count(), 1, "{line} in {}", report.detail);
            }
        }
        let memory = Limits { memory_bytes: Some(4096), ..Limits::default() };
        assert_eq!(layer_report(&memory, true).state, LayerState::Enforced);
        assert_eq!(layer_report(&memory, false).state, LayerState::Partial);
    }

    #[test]
    fn limits_that_no_container_enforces_are_refused_by_name() {
        assert!(require_enforced(&every()).unwrap_err().what.contains("io"));
        assert_eq!(require_enforced(&Limits { io_bytes_per_s: None, ..every() }), Ok(()));
    }

    #[test]
    fn without_namespaces_a_requested_limit_is_refused_unless_enforced() {
        let wished = Limits { inodes: Some(5), ..Limits::default() };
        assert!(require_limits_without_isolation(&wished).unwrap_err().what.contains("inodes"));
        let usual = Limits { disk_bytes: Some(5), memory_bytes: Some(5), ..Limits::default() };
        assert_eq!(require_limits_without_isolation(&usual), Ok(()));
    }

    #[test]
    fn without_namespaces_a_command_has_the_limits_of_its_sandbox_and_a_clock() {
        let all = Limits { memory_bytes: Some(100), ..Limits::default() };
        assert_eq!(require_no_lower(&all, &Limits { wall_ms: Some(5), ..all.clone() }), Ok(()));
        assert_eq!(require_no_lower(&all, &Limits { memory_bytes: Some(101), ..all.clone() }), Ok(()));
        let less = require_no_lower(&all, &Limits { memory_bytes: Some(50), ..all.clone() });
        assert!(less.unwrap_err().what.contains("memory"));
    }

    #[test]
    fn a_command_has_the_limits_that_the_container_cannot_enforce_for_all() {
        let all = Limits { memory_bytes: Some(100), disk_bytes: Some(10), ..Limits::default() };
        let same = command_limits(&all, &Limits { memory_bytes: Some(100), disk_bytes: Some(20), ..Limits::default() });
        assert_eq!(same, Limits { disk_bytes: Some(10), ..Limits::default() });
        let less = command_limits(&all, &Limits { memory_bytes: Some(50), open_files: Some(7), ..Limits::default() });
        let expected_limits =
            Limits { memory_bytes: Some(50), disk_bytes: Some(10), open_files: Some(7), ..Limits::default() };
        assert_eq!(less, expected_limits);
    }
}
