//! The mechanism of each limit, and its text in the report.

use stockade_model::{IsolationLevel, LayerReport, LayerState, LimitKind, Limits};

use super::disk::MAX_OVERSHOOT_BYTES;
use super::freeze;
use super::group::ControlGroup;
use super::resources::holds_processes;

/// Mechanism that enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitMechanism {
    /// The kernel, for the whole run.
    Group,
    /// The kernel, for each process; the watch reports processes that reach the limit.
    Resource,
    /// The kernel's count of the user's processes.
    UserCount,
    /// The size of the private filesystem.
    Filesystem,
    /// The engine's clock.
    Clock,
    /// The reader of the output.
    Capture,
    /// The watch: the limit may be exceeded for a moment.
    Watch,
    /// The watch, including the changes of other processes on the same filesystem.
    WatchedFilesystem,
    /// Writes there count as disk.
    AsDisk,
    /// No mechanism on this machine.
    Nothing,
}

impl LimitMechanism {
    /// Returns the text for `limit`, and whether the limit is fully enforced.
    fn report_text(self, limit: LimitKind, group: Option<&ControlGroup>) -> (&'static str, bool) {
        let one = group.is_some_and(|group| group.is_v1(limit));
        match self {
            Self::Group if limit == LimitKind::Io && one => {
                ("control group v1, without data that is written back later", false)
            }
            Self::Group if one => ("control group v1", true),
            Self::Group => ("control group v2", true),
            Self::Resource => ("each process", true),
            Self::UserCount => ("the kernel's count of the user's processes", true),
            Self::Filesystem => ("size of its filesystem", true),
            Self::Clock => ("clock", true),
            Self::Capture => ("kept output", true),
            Self::Watch => ("watched", limit == LimitKind::CpuTime),
            Self::WatchedFilesystem => ("watched, including files of others on the filesystem", false),
            Self::AsDisk => ("counted only as disk", false),
            Self::Nothing => ("not held", false),
        }
    }
}

/// Returns the mechanism of each of `limits`.
pub(super) fn find_mechanisms(
    limits: &Limits,
    level: IsolationLevel,
    group: Option<&ControlGroup>,
) -> Vec<(LimitKind, u64, LimitMechanism)> {
    let in_group = |limit| group.is_some_and(|group| group.enforces_limit(limit));
    let holder = |limit| match limit {
        limit if in_group(limit) => LimitMechanism::Group,
        LimitKind::Wall => LimitMechanism::Clock,
        LimitKind::Output => LimitMechanism::Capture,
        LimitKind::Temp if level == IsolationLevel::Full => LimitMechanism::Filesystem,
        LimitKind::Temp => LimitMechanism::AsDisk,
        LimitKind::OpenFiles | LimitKind::FileSize => LimitMechanism::Resource,
        // Without a namespace of its own, the kernel also counts the user's other processes.
        LimitKind::Processes if holds_processes() && level == IsolationLevel::Full => LimitMechanism::UserCount,
        LimitKind::Memory | LimitKind::Processes | LimitKind::CpuTime | LimitKind::Disk => LimitMechanism::Watch,
        LimitKind::Inodes => LimitMechanism::WatchedFilesystem,
        LimitKind::Cpus | LimitKind::Io => LimitMechanism::Nothing,
    };
    limits.iter_limits().map(|(limit, amount)| (limit, amount, holder(limit))).collect()
}

/// Reports which of `tried` a group enforces.
pub(super) fn survey_group(tried: &[LimitKind], group: &ControlGroup) -> (LayerState, String) {
    let text = |limit: &LimitKind| match group.refusal_reason(*limit) {
        _ if group.enforces_limit(*limit) => {
            format!("{limit}: {}", LimitMechanism::Group.report_text(*limit, Some(group)).0)
        }
        Some(why) => format!("{limit}: not in a control group ({why})"),
        None => format!("{limit}: not in a control group"),
    };
    let state =
        if tried.iter().all(|limit| group.enforces_limit(*limit)) { LayerState::Enforced } else { LayerState::Partial };
    (state, tried.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Makes one line of the enforcement report.
pub(super) fn build_report(
    holders: &[(LimitKind, u64, LimitMechanism)],
    group: Option<&ControlGroup>,
    file_size: Option<u64>,
) -> LayerReport {
    let mut parts = vec!["no core dumps".to_owned()];
    let mut whole = true;
    for (limit, amount, holder) in holders {
        let (how, is_whole) = holder.report_text(*limit, group);
        whole &= is_whole;
        let precisely = if *limit == LimitKind::Disk { of_disk(file_size) } else { String::new() };
        parts.push(format!("{limit} {}: {how}{precisely}", limit.format_amount(*amount)));
    }
    let state = if whole { LayerState::Enforced } else { LayerState::Partial };
    LayerReport { state, detail: parts.join("; ") }
}

/// Returns by how much the watched disk limit may be exceeded, and the part that the kernel
/// enforces.
fn of_disk(file_size: Option<u64>) -> String {
    let file = file_size
        .map(|bytes| format!("; no new file grows beyond {} (each process)", LimitKind::Disk.format_amount(bytes)));
    let overshoot = LimitKind::Disk.format_amount(MAX_OVERSHOOT_BYTES);
    format!(", may be passed by about {overshoot} for each writer{}", file.unwrap_or_default())
}

/// Returns the limits that an approval raises while the run is frozen. For more of the other
/// limits, the command must run again.
pub(super) fn raised_in_place(holders: &[(LimitKind, u64, LimitMechanism)], group: Option<&ControlGroup>) -> String {
    let can = |(limit, _, holder): &&(LimitKind, u64, LimitMechanism)| match holder {
        LimitMechanism::Clock | LimitMechanism::Watch | LimitMechanism::WatchedFilesystem => true,
        LimitMechanism::Group => matches!(limit, LimitKind::Memory | LimitKind::Processes),
        _ => false,
    };
    let names: Vec<&str> = holders.iter().filter(can).map(|(limit, ..)| limit.name()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("; raised in place after a question, the run {}: {}", freeze::freeze_method(group), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_can_be_raised_in_place_are_listed() {
        let limits = Limits { wall_ms: Some(1), open_files: Some(100), disk_bytes: Some(1), ..Limits::default() };
        let text = raised_in_place(&find_mechanisms(&limits, IsolationLevel::Full, None), None);
        assert!(text.ends_with("stopped by signal, which they can see: wall, disk"), "{text}");
        let none = Limits { open_files: Some(100), ..Limits::default() };
        assert_eq!(raised_in_place(&find_mechanisms(&none, IsolationLevel::Full, None), None), "");
    }

    #[test]
    fn every_limit_has_a_holder_and_a_line() {
        let mut limits = Limits::default();
        for limit in LimitKind::ALL {
            limits.set_limit(limit, 4096);
        }
        let holders = find_mechanisms(&limits, IsolationLevel::Full, None);
        let of = |limit| holders.iter().find(|(l, ..)| *l == limit).unwrap().2;
        assert_eq!((of(LimitKind::Memory), of(LimitKind::Cpus)), (LimitMechanism::Watch, LimitMechanism::Nothing));
        let report = build_report(&holders, None, Some(8192));
        assert_eq!(report.state, LayerState::Partial);
        let of_disk = "disk 4KiB: watched, may be passed by about 20MiB for each writer; no new file grows beyond 8KiB";
        assert!(report.detail.contains(of_disk), "{}", report.detail);
        insta_like(&report.detail);
    }

    /// Checks that every limit appears once, with its amount.
    fn insta_like(detail: &str) {
        for limit in LimitKind::ALL {
            let line = format!("{limit} {}: ", limit.format_amount(4096));
            assert_eq!(detail.matches(&line).count(), 1, "{line} in {detail}");
        }
    }

    #[test]
    fn layers_enforced_by_the_kernel_are_complete() {
        let limits = Limits { open_files: Some(100), wall_ms: Some(1000), ..Limits::default() };
        let report = build_report(&find_mechanisms(&limits, IsolationLevel::Full, None), None, None);
        assert_eq!(report.state, LayerState::Enforced);
        assert_eq!(report.detail, "no core dumps; wall 1s: clock; open_files 100: each process");
    }
}
