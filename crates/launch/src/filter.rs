//! The seccomp filter of a sandboxed command, as a program for the kernel.
//!
//! The tables are data with a reason for each entry; this file only selects and joins them.
//! Refusals come before notifications. A call in no table is allowed: the mounts, Landlock and the
//! lack of privileges still decide on it.

use std::collections::HashMap;
use std::sync::LazyLock;

use stockade_model::{IsolationLevel, table_rows};
use stockade_sys::bpf::{
    ArgumentComparison, ArgumentCondition, ArgumentWidth, CompileError, SeccompAction, SeccompProgram, SeccompRule,
    compile_rules,
};
use stockade_sys::calls::list_calls;

use crate::call_table::{BitTest, SyscallTrap, notify_table};

/// The newest system call that these tables cover: `file_setattr` (kernel 6.17). Calls with higher
/// numbers fail with ENOSYS. From 424 on, numbers are the same on every architecture.
const NEWEST_SYSCALL: u32 = 469;
/// Number of a call that no filter can contain, so that a row that cannot be read prevents every
/// start.
const INVALID_CALL: i64 = -1;

/// The rows of `data/filter.txt`, with their sections.
static FILTER_ROWS: LazyLock<Vec<(&str, SeccompRule)>> =
    LazyLock::new(|| parse_filter_rows(include_str!("../data/filter.txt")));

fn parse_filter_rows(text: &'static str) -> Vec<(&'static str, SeccompRule)> {
    let numbers: HashMap<&str, i64> = list_calls().collect();
    let (mut section, mut conditions, mut rows) = ("", HashMap::new(), Vec::new());
    for row in table_rows(text) {
        if let Some(name) = row.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if let Some((name, condition)) = row.strip_prefix("define ").and_then(|row| row.split_once(' ')) {
            conditions.extend(parse_condition(condition).map(|condition| (name, condition)));
        } else {
            let rules = parse_filter_row(row, &numbers, &conditions);
            let invalid =
                SeccompRule { call: INVALID_CALL, conditions: Vec::new(), action: SeccompAction::KillProcess };
            rows.extend(rules.unwrap_or_else(|| vec![invalid]).into_iter().map(|rule| (section, rule)));
        }
    }
    rows
}

/// Parses `ACTION CALL ... CONDITION ...: REASON`. Returns a rule for each call.
fn parse_filter_row(
    row: &str,
    numbers: &HashMap<&str, i64>,
    named: &HashMap<&str, ArgumentCondition>,
) -> Option<Vec<SeccompRule>> {
    let (words, _reason) = row.split_once(": ")?;
    let mut words = words.split(' ').peekable();
    let action = match words.next()? {
        "allow" => SeccompAction::Allow,
        errno => SeccompAction::Errno(errno_by_name(errno)?),
    };
    let find = |word: &str| named.get(word).copied().or_else(|| parse_condition(word));
    let mut calls = Vec::new();
    while let Some(word) = words.next_if(|word| find(word).is_none()) {
        match (numbers.get(word.trim_start_matches('?')), word.starts_with('?')) {
            (Some(number), _) => calls.push(*number),
            (None, true) => {}
            (None, false) => return None,
        }
    }
    let conditions: Vec<ArgumentCondition> = words.map(find).collect::<Option<_>>()?;
    Some(calls.into_iter().map(|call| SeccompRule { call, conditions: conditions.clone(), action }).collect())
}

fn errno_by_name(name: &str) -> Option<u16> {
    let errno = match name {
        "EPERM" => libc::EPERM,
        "ENOSYS" => libc::ENOSYS,
        "ENOTTY" => libc::ENOTTY,
        "ENOPROTOOPT" => libc::ENOPROTOOPT,
        "EPROTONOSUPPORT" => libc::EPROTONOSUPPORT,
        "EOPNOTSUPP" => libc::EOPNOTSUPP,
        "EAFNOSUPPORT" => libc::EAFNOSUPPORT,
        _ => return None,
    };
    u16::try_from(errno).ok()
}

/// Parses `arg1=5`, `arg1!=5`, `arg1&0xff=5`, `arg1&0xff`, or one of these with `ptr1`.
fn parse_condition(text: &str) -> Option<ArgumentCondition> {
    let (register, test) = text.split_at_checked(4)?;
    let (width, all_bits, index) = match register.split_at_checked(3)? {
        ("arg", index) => (ArgumentWidth::Bits32, u64::from(u32::MAX), index),
        ("ptr", index) => (ArgumentWidth::Bits64, u64::MAX, index),
        _ => return None,
    };
    let (mask, test) = match test.strip_prefix('&') {
        Some(rest) => {
            let (mask, test) = rest.split_at(rest.find('=').unwrap_or(rest.len()));
            (Some(parse_number(mask)?), test)
        }
        None => (None, test),
    };
    let (comparison, value) = match (test.strip_prefix("!="), test.strip_prefix('=')) {
        (Some(value), _) => (ArgumentComparison::NotEqual, parse_number(value)?),
        (_, Some(value)) => (ArgumentComparison::Equal, parse_number(value)?),
        _ if test.is_empty() && mask.is_some() => (ArgumentComparison::NotEqual, 0),
        _ => return None,
    };
    let argument = index.parse().ok()?;
    Some(ArgumentCondition { argument, width, mask: mask.unwrap_or(all_bits), comparison, value })
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the rules of one section, in their order.
fn section_rules(section: &str) -> impl Iterator<Item = &'static SeccompRule> {
    FILTER_ROWS.iter().filter(move |(own, _)| *own == section).map(|(_, rule)| rule)
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
    let of_hosts = has_hosts.then(|| section_rules("port-sharing")).into_iter().flatten();
    let of_disk = options.small_disk.then(|| section_rules("small-disk")).into_iter().flatten();
    let refused = refused_rules(level).chain(of_hosts).chain(of_disk).cloned();
    let broker_entries =
        notify_table(level, options.traced, options.small_disk).into_iter().map(|trap| notify_rule(&trap));
    refused.chain(broker_entries).chain(section_rules("other-sockets").cloned()).collect()
}

/// Returns the filter of a command with no trapped calls, for measurements.
#[cfg(feature = "measure")]
pub fn unasked_filter(level: IsolationLevel) -> Result<SeccompProgram, CompileError> {
    let rules: Vec<SeccompRule> = refused_rules(level).chain(section_rules("other-sockets")).cloned().collect();
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
    let extra = if level == IsolationLevel::Restricted { "init-restricted" } else { "init-full" };
    let rules: Vec<SeccompRule> = section_rules("init").chain(section_rules(extra)).cloned().collect();
    compile_rules(&rules, NEWEST_SYSCALL, SeccompAction::Errno(libc::EPERM as u16))
}

/// Returns the calls that no command may make at any level, whatever the arguments: the number of
/// each and its errno.
pub fn never_allowed() -> impl Iterator<Item = (i64, u16)> {
    let depends = |call: i64| section_rules("refused").any(|rule| rule.call == call && !rule.conditions.is_empty());
    section_rules("refused").filter(move |rule| !depends(rule.call)).filter_map(|rule| match rule.action {
        SeccompAction::Errno(errno) => Some((rule.call, errno)),
        SeccompAction::Allow | SeccompAction::Notify | SeccompAction::KillProcess => None,
    })
}

fn refused_rules(level: IsolationLevel) -> impl Iterator<Item = &'static SeccompRule> {
    section_rules("refused").chain(section_rules(if level == IsolationLevel::Restricted {
        "restricted"
    } else {
        "full"
    }))
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
        }
    }

    #[test]
    fn every_row_can_be_read_and_says_why() {
        let sections: std::collections::BTreeSet<&str> = FILTER_ROWS.iter().map(|(section, _)| *section).collect();
        let known = ["full", "init", "init-full", "init-restricted", "other-sockets", "port-sharing", "refused"];
        assert!(sections.into_iter().eq(known.into_iter().chain(["restricted", "small-disk"])));
        assert!(FILTER_ROWS.iter().all(|(_, rule)| rule.call != INVALID_CALL));
        for row in table_rows(include_str!("../data/filter.txt")) {
            let is_entry = !row.starts_with('[') && !row.starts_with("define ");
            assert!(!is_entry || row.split_once(": ").is_some_and(|(_, reason)| reason.len() > 10), "{row}");
        }
    }

    #[test]
    fn rows_that_cannot_be_read_prevent_a_filter() {
        let rows = "EPERM mounts: x\nEPER mount: x\nEPERM mount arg1: x\nEPERM mount arg1=x: x\nEPERM mount\n\
                    EPERM mount mounts: x\nEPERM ioctl arg1=1 mount: x\nallow mount unix: x\nEPERM mount arg1&=0: x";
        let read = parse_filter_rows(rows);
        assert!(
            read.len() == rows.lines().count() && read.iter().all(|(_, rule)| rule.call == INVALID_CALL),
            "{read:?}"
        );
        let rules: Vec<SeccompRule> = read.into_iter().map(|(_, rule)| rule).collect();
        assert!(compile_rules(&rules, NEWEST_SYSCALL, SeccompAction::Allow).is_err());
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
