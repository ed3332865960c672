//! The mechanism of each limit, and its text in the report.

use stockade_model::{LayerReport, LayerState, Level, Limit, Limits};

use super::disk::OVERSHOOT_BYTES;
use super::group::Group;
use super::halt;
use super::resources::holds_processes;

/// Mechanism that enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
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

impl Holder {
    /// Returns the text for `limit`, and whether the limit is fully enforced.
    fn text(self, limit: Limit, group: Option<&Group>) -> (&'static str, bool) {
        let one = group.is_some_and(|group| group.is_v1(limit));
        match self {
            Self::Group if limit == Limit::Io && one => ("control group v1, not what is written back later", false),
            Self::Group if one => ("control group v1", true),
            Self::Group => ("control group v2", true),
            Self::Resource => ("each process", true),
            Self::UserCount => ("the kernel's count of the user's processes", true),
            Self::Filesystem => ("size of its filesystem", true),
            Self::Clock => ("clock", true),
            Self::Capture => ("kept output", true),
            Self::Watch => ("watched", limit == Limit::CpuTime),
            Self::WatchedFilesystem => ("watched, with what others make on the filesystem", false),
            Self::AsDisk => ("counted as disk alone", false),
            Self::Nothing => ("not held", false),
        }
    }
}

/// Returns the mechanism of each of `limits`.
pub(super) fn holders(limits: &Limits, level: Level, group: Option<&Group>) -> Vec<(Limit, u64, Holder)> {
    let in_group = |limit| group.is_some_and(|group| group.holds(limit));
    let holder = |limit| match limit {
        limit if in_group(limit) => Holder::Group,
        Limit::Wall => Holder::Clock,
        Limit::Output => Holder::Capture,
        Limit::Temp if level == Level::Full => Holder::Filesystem,
        Limit::Temp => Holder::AsDisk,
        Limit::OpenFiles | Limit::FileSize => Holder::Resource,
        // Without a namespace of its own, the kernel also counts the user's other processes.
        Limit::Processes if holds_processes() && level == Level::Full => Holder::UserCount,
        Limit::Memory | Limit::Processes | Limit::CpuTime | Limit::Disk => Holder::Watch,
        Limit::Inodes => Holder::WatchedFilesystem,
        Limit::Cpus | Limit::Io => Holder::Nothing,
    };
    limits.each().map(|(limit, amount)| (limit, amount, holder(limit))).collect()
}

/// Reports which of `tried` a group enforces.
pub(super) fn survey(tried: &[Limit], group: &Group) -> (LayerState, String) {
    let text = |limit: &Limit| match group.refused(*limit) {
        _ if group.holds(*limit) => format!("{limit}: {}", Holder::Group.text(*limit, Some(group)).0),
        Some(why) => format!("{limit}: not in a control group ({why})"),
        None => format!("{limit}: not in a control group"),
    };
    let state = if tried.iter().all(|limit| group.holds(*limit)) { LayerState::Enforced } else { LayerState::Partial };
    (state, tried.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Makes one line of the enforcement report.
pub(super) fn report(holders: &[(Limit, u64, Holder)], group: Option<&Group>, file_size: Option<u64>) -> LayerReport {
    let mut parts = vec!["no core dumps".to_owned()];
    let mut whole = true;
    for (limit, amount, holder) in holders {
        let (how, is_whole) = holder.text(*limit, group);
        whole &= is_whole;
        let precisely = if *limit == Limit::Disk { of_disk(file_size) } else { String::new() };
        parts.push(format!("{limit} {}: {how}{precisely}", limit.text(*amount)));
    }
    let state = if whole { LayerState::Enforced } else { LayerState::Partial };
    LayerReport { state, detail: parts.join("; ") }
}

/// Returns by how much the watched disk limit may be exceeded, and the part that the kernel
/// enforces.
fn of_disk(file_size: Option<u64>) -> String {
    let file = file_size.map(|bytes| format!("; no new file grows beyond {} (each process)", Limit::Disk.text(bytes)));
    let overshoot = Limit::Disk.text(OVERSHOOT_BYTES);
    format!(", may be passed by about {overshoot} for each writer{}", file.unwrap_or_default())
}

/// Returns the limits that an approval raises while the run is frozen. For more of the other
/// limits, the command must run again.
pub(super) fn raised_in_place(holders: &[(Limit, u64, Holder)], group: Option<&Group>) -> String {
    let can = |(limit, _, holder): &&(Limit, u64, Holder)| match holder {
        Holder::Clock | Holder::Watch | Holder::WatchedFilesystem => true,
        Holder::Group => matches!(limit, Limit::Memory | Limit::Processes),
        _ => false,
    };
    let names: Vec<&str> = holders.iter().filter(can).map(|(limit, ..)| limit.name()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("; raised in place after a question, the run {}: {}", halt::way(group), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_raised_in_place_is_told() {
        let limits = Limits { wall_ms: Some(1), open_files: Some(100), disk_bytes: Some(1), ..Limits::default() };
        let text = raised_in_place(&holders(&limits, Level::Full, None), None);
        assert!(text.ends_with("stopped by signal, which they can see: wall, disk"), "{text}");
        let none = Limits { open_files: Some(100), ..Limits::default() };
        assert_eq!(raised_in_place(&holders(&none, Level::Full, None), None), "");
    }

    #[test]
    fn every_limit_has_a_holder_and_a_line() {
        let mut limits = Limits::default();
        for limit in Limit::ALL {
            limits.set(limit, 4096);
        }
        let holders = holders(&limits, Level::Full, None);
        let of = |limit| holders.iter().find(|(l, ..)| *l == limit).unwrap().2;
        assert_eq!((of(Limit::Memory), of(Limit::Cpus)), (Holder::Watch, Holder::Nothing));
        let report = report(&holders, None, Some(8192));
        assert_eq!(report.state, LayerState::Partial);
        let of_disk = "disk 4KiB: watched, may be passed by about 20MiB for each writer; no new file grows beyond 8KiB";
        assert!(report.detail.contains(of_disk), "{}", report.detail);
        insta_like(&report.detail);
    }

    /// Checks that every limit appears once, with its amount.
    fn insta_like(detail: &str) {
        for limit in Limit::ALL {
            let line = format!("{limit} {}: ", limit.text(4096));
            assert_eq!(detail.matches(&line).count(), 1, "{line} in {detail}");
        }
    }

    #[test]
    fn what_the_kernel_holds_is_whole() {
        let limits = Limits { open_files: Some(100), wall_ms: Some(1000), ..Limits::default() };
        let report = report(&holders(&limits, Level::Full, None), None, None);
        assert_eq!(report.state, LayerState::Enforced);
        assert_eq!(report.detail, "no core dumps; wall 1s: clock; open_files 100: each process");
    }
}
