//! The seccomp filter of a sandboxed command, as a program for the kernel.
//!
//! The tables are data with a reason for each entry; this file only selects and joins them.
//! Refusals come before notifications. A call in no table is allowed: the mounts, Landlock and the
//! lack of privileges still decide on it.

use stockade_model::IsolationLevel;
use stockade_sys::bpf::{
    ArgumentComparison, ArgumentCondition, ArgumentWidth, CompileError, SeccompAction, SeccompProgram, SeccompRule,
    compile_rules,
};

#[path = "filter_base.rs"]
mod base;
use crate::call_table::{BitTest, SyscallTrap, notify_table};

/// The newest system call that these tables cover: `file_setattr` (kernel 6.17). Calls with higher
/// numbers fail with ENOSYS. From 424 on, numbers are the same on every architecture.
const NEWEST_SYSCALL: u32 = 469;

/// One entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct FilterEntry {
    /// Number of the system call.
    pub call: i64,
    /// All conditions must hold.
    pub conditions: &'static [ArgumentCondition],
    /// The action.
    pub action: SeccompAction,
    /// The reason.
    pub reason: &'static str,
}

impl FilterEntry {
    fn seccomp_rule(&self) -> SeccompRule {
        SeccompRule { call: self.call, conditions: self.conditions.to_vec(), action: self.action }
    }
}

/// Number of filter entries of each kind, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterSize {
    /// Table entries that refuse.
    pub refused: usize,
    /// Table entries that ask the broker.
    pub broker_entries: usize,
}

/// Further options of a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterOptions {
    /// True if reads are trapped too.
    pub traced: bool,
    /// True if the surrounding network is the run's own, also at level restricted.
    pub own_network: bool,
    /// True if the run has a small limit of the disk.
    pub small_disk: bool,
}

/// Returns the filter of a command.
///
/// # Errors
/// None with the current tables; a test compiles them.
pub fn command_filter(
    level: IsolationLevel,
    options: FilterOptions,
) -> Result<(SeccompProgram, FilterSize), CompileError> {
    let rules = command_rules(level, options);
    let size = FilterSize {
        refused: rules
            .iter()
            .filter(|e| matches!(e.action, SeccompAction::Errno(_) | SeccompAction::KillProcess))
            .count(),
        broker_entries: rules.iter().filter(|e| e.action == SeccompAction::Notify).count(),
    };
    Ok((compile_rules(&rules, NEWEST_SYSCALL, SeccompAction::Allow)?, size))
}

/// Returns refusals first, then the calls for the broker, then the rest of socket(2). At level
/// restricted the broker decides on two of its families.
fn command_rules(level: IsolationLevel, options: FilterOptions) -> Vec<SeccompRule> {
    let has_hosts = level == IsolationLevel::Restricted && !options.own_network;
    let of_hosts: &[FilterEntry] = if has_hosts { base::PORT_SHARING_ENTRIES } else { &[] };
    let of_disk: &[FilterEntry] = if options.small_disk { base::SMALL_DISK_ENTRIES } else { &[] };
    let refused = refused_entries(level).chain(of_hosts).chain(of_disk).map(FilterEntry::seccomp_rule);
    let broker_entries =
        notify_table(level, options.traced, options.small_disk).into_iter().map(|trap| notify_rule(&trap));
    refused.chain(broker_entries).chain(base::OTHER_SOCKET_ENTRIES.iter().map(FilterEntry::seccomp_rule)).collect()
}

/// Returns the filter of a command with no trapped calls, for measurements.
#[cfg(feature = "measure")]
pub fn unasked_filter(level: IsolationLevel) -> Result<SeccompProgram, CompileError> {
    let rules: Vec<SeccompRule> =
        refused_entries(level).chain(base::OTHER_SOCKET_ENTRIES).map(FilterEntry::seccomp_rule).collect();
    compile_rules(&rules, NEWEST_SYSCALL, SeccompAction::Allow)
}

fn notify_rule(trap: &SyscallTrap) -> SeccompRule {
    let conditions = trap.when.iter().map(|test| {
        let (comparison, value) = match test.test {
            BitTest::Equals(value) => (ArgumentComparison::Equal, value),
            BitTest::AnyBit => (ArgumentComparison::NotEqual, 0),
        };
        let width = if test.mask <= u64::from(u32::MAX) { ArgumentWidth::Bits32 } else { ArgumentWidth::Bits64 };
        ArgumentCondition { argument: test.index, width, mask: test.mask, comparison, value }
    });
    SeccompRule { call: trap.call, conditions: conditions.collect(), action: SeccompAction::Notify }
}

/// Returns the filter of the init, which runs between the caller and the command. The init may only
/// wait, kill and report.
///
/// # Errors
/// None with the current tables; a test compiles them.
pub fn init_filter(level: IsolationLevel) -> Result<SeccompProgram, CompileError> {
    let extra: &[FilterEntry] =
        if level == IsolationLevel::Restricted { base::INIT_RESTRICTED_ENTRIES } else { base::INIT_FULL_ENTRIES };
    let rules: Vec<SeccompRule> = base::INIT_ENTRIES.iter().chain(extra).map(FilterEntry::seccomp_rule).collect();
    compile_rules(&rules, NEWEST_SYSCALL, SeccompAction::Errno(libc::EPERM as u16))
}

/// Returns the calls that a command of `level` is refused without the broker: the number and the
/// reason of each.
pub fn refused_calls(level: IsolationLevel) -> impl Iterator<Item = (i64, &'static str)> {
    let entries = refused_entries(level).chain(base::OTHER_SOCKET_ENTRIES);
    entries.filter(|e| matches!(e.action, SeccompAction::Errno(_))).map(|e| (e.call, e.reason))
}

/// Returns the calls that no command may make at any level, whatever the arguments: the number of
/// each and its errno.
pub fn never_allowed() -> impl Iterator<Item = (i64, u16)> {
    let depends =
        |call: i64| base::REFUSED_ENTRIES.iter().any(|entry| entry.call == call && !entry.conditions.is_empty());
    base::REFUSED_ENTRIES.iter().filter(move |entry| !depends(entry.call)).filter_map(|entry| match entry.action {
        SeccompAction::Errno(errno) => Some((entry.call, errno)),
        SeccompAction::Allow | SeccompAction::Notify | SeccompAction::KillProcess => None,
    })
}

fn refused_entries(level: IsolationLevel) -> impl Iterator<Item = &'static FilterEntry> {
    let by_level: &[FilterEntry] =
        if level == IsolationLevel::Restricted { base::RESTRICTED_LEVEL_ENTRIES } else { base::FULL_LEVEL_ENTRIES };
    base::REFUSED_ENTRIES.iter().chain(by_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_compiles_and_every_entry_has_a_reason() {
        for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
            let (program, size) = command_filter(level, FilterOptions::default()).unwrap();
            let all = FilterOptions { traced: true, small_disk: true, ..FilterOptions::default() };
            let (longer, more) = command_filter(level, all).unwrap();
            assert!(more.broker_entries > size.broker_entries && longer.len() > program.len());
            assert!(program.len() < 1000 && size.refused > 50 && size.broker_entries > 20, "{size:?}");
            assert!(init_filter(level).unwrap().len() < 200);
            for entry in refused_entries(level)
                .chain(base::OTHER_SOCKET_ENTRIES)
                .chain(base::INIT_ENTRIES)
                .chain(base::INIT_RESTRICTED_ENTRIES)
                .chain(base::INIT_FULL_ENTRIES)
                .chain(base::SMALL_DISK_ENTRIES)
            {
                assert!(entry.reason.len() > 10, "{entry:?}");
            }
        }
    }

    /// An entry after one without conditions can never decide.
    #[test]
    fn no_entry_is_out_of_reach() {
        for level in [IsolationLevel::Full, IsolationLevel::Restricted] {
            let mut closed = std::collections::BTreeSet::new();
            let all = FilterOptions { traced: true, own_network: false, small_disk: true };
            for rule in command_rules(level, all) {
                assert!(!closed.contains(&rule.call), "{level}: {rule:?} is shadowed");
                if rule.conditions.is_empty() {
                    closed.insert(rule.call);
                }
            }
        }
    }
}
