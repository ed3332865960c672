//! Limits of a run: their kinds, amounts and text forms.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{
    duration_ms, duration_text, parse_count, parse_thousandths, size_bytes, size_text, thousandths_text,
};

/// One kind of limit. The text form is the name in configuration, in `--limit NAME=AMOUNT` and in a grant
/// (`memory 8GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Wall clock.
    Wall,
    /// Processor time of all processes together.
    CpuTime,
    /// Processors in use at one time.
    Cpus,
    /// Memory of all processes together, without swap.
    Memory,
    /// Processes and threads at one time.
    Processes,
    /// Bytes written to disk.
    Disk,
    /// Files, directories and links created, less those removed.
    Inodes,
    /// Bytes read, and bytes written, per second.
    Io,
    /// Open descriptors of one process.
    OpenFiles,
    /// Size of one file.
    FileSize,
    /// Size of the private temporary directory.
    Temp,
    /// Size of the kept part of each output stream.
    Output,
}

/// Greatest amount of memory. A smaller limit may still exceed the memory of this machine, because one
/// configuration file serves several machines.
const MAX_MEMORY_BYTES: u64 = 64 << 40;

impl LimitKind {
    /// All limits, in display order.
    pub const ALL: [Self; 12] = [
        Self::Wall,
        Self::CpuTime,
        Self::Cpus,
        Self::Memory,
        Self::Processes,
        Self::Disk,
        Self::Inodes,
        Self::Io,
        Self::OpenFiles,
        Self::FileSize,
        Self::Temp,
        Self::Output,
    ];

    /// Returns the key of the limit in a profile, e.g. `limits.memory`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Wall => "limits.wall",
            Self::CpuTime => "limits.cpu_time",
            Self::Cpus => "limits.cpus",
            Self::Memory => "limits.memory",
            Self::Processes => "limits.processes",
            Self::Disk => "limits.disk",
            Self::Inodes => "limits.inodes",
            Self::Io => "limits.io",
            Self::OpenFiles => "limits.open_files",
            Self::FileSize => "limits.file_size",
            Self::Temp => "limits.temp",
            Self::Output => "limits.output",
        }
    }

    /// Returns the name of the limit: the last part of its key.
    pub fn name(self) -> &'static str {
        self.key().trim_start_matches("limits.")
    }

    /// Returns the limit of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Parses an amount of the limit.
    ///
    /// # Errors
    /// The reason for the user, if the text is not an amount.
    pub fn parse_amount(self, text: &str) -> Result<u64, &'static str> {
        match self {
            Self::Wall | Self::CpuTime => duration_ms(text),
            Self::Cpus => parse_thousandths(text),
            // A greater amount is a mistake, not a limit.
            Self::Memory => size_bytes(text).and_then(|bytes| match bytes {
                0..=MAX_MEMORY_BYTES => Ok(bytes),
                _ => Err("no machine has more memory than 64TiB: give less, or leave this limit out"),
            }),
            Self::Disk | Self::Io | Self::FileSize | Self::Temp | Self::Output => size_bytes(text),
            // With fewer descriptors no program starts.
            Self::OpenFiles => parse_count(text).and_then(|n| if n < 16 { Err("at least 16") } else { Ok(n) }),
            Self::Processes | Self::Inodes => parse_count(text),
        }
    }

    /// Formats an amount of the limit, as [`parse_amount`](Self::parse_amount) reads it.
    pub fn format_amount(self, amount: u64) -> String {
        match self {
            Self::Wall | Self::CpuTime => duration_text(amount),
            Self::Cpus => thousandths_text(amount),
            Self::Memory | Self::Disk | Self::Io | Self::FileSize | Self::Temp | Self::Output => size_text(amount),
            Self::Processes | Self::Inodes | Self::OpenFiles => amount.to_string(),
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Limits of a run. An absent value sets no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Wall clock, in milliseconds.
    pub wall_ms: Option<u64>,
    /// Processor time of all processes together, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time_ms: Option<u64>,
    /// Processors in use at one time, in thousandths of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_milli: Option<u64>,
    /// Memory of all processes together, in bytes. There is no swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads at one time.
    pub processes: Option<u64>,
    /// Bytes written to disk: in the workspace, a stage, and all other writable paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Files, directories and links created, less those removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Bytes read, and bytes written, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_bytes_per_s: Option<u64>,
    /// Open descriptors of one process.
    pub open_files: Option<u64>,
    /// Size of one file, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Size of the private temporary directory, in bytes.
    pub temp_bytes: Option<u64>,
    /// Bytes of each output stream that are kept when output is captured: half from the head, half from the
    /// tail.
    pub output_bytes: Option<u64>,
}

impl Limits {
    /// Returns the amount of one limit.
    pub fn get(&self, limit: LimitKind) -> Option<u64> {
        *self.clone().amount_mut(limit)
    }

    /// Sets one limit.
    pub fn set_limit(&mut self, limit: LimitKind, amount: u64) {
        *self.amount_mut(limit) = Some(amount);
    }

    fn amount_mut(&mut self, limit: LimitKind) -> &mut Option<u64> {
        match limit {
            LimitKind::Wall => &mut self.wall_ms,
            LimitKind::CpuTime => &mut self.cpu_time_ms,
            LimitKind::Cpus => &mut self.cpus_milli,
            LimitKind::Memory => &mut self.memory_bytes,
            LimitKind::Processes => &mut self.processes,
            LimitKind::Disk => &mut self.disk_bytes,
            LimitKind::Inodes => &mut self.inodes,
            LimitKind::Io => &mut self.io_bytes_per_s,
            LimitKind::OpenFiles => &mut self.open_files,
            LimitKind::FileSize => &mut self.file_size_bytes,
            LimitKind::Temp => &mut self.temp_bytes,
            LimitKind::Output => &mut self.output_bytes,
        }
    }

    /// Returns the limits that are set, in display order.
    pub fn iter_limits(&self) -> impl Iterator<Item = (LimitKind, u64)> {
        LimitKind::ALL.into_iter().filter_map(|limit| self.get(limit).map(|amount| (limit, amount)))
    }

    /// Lowers each limit to that of `other`, if that is lower or this one is not set.
    pub fn lower_to(&mut self, other: &Self) {
        for (limit, amount) in other.iter_limits() {
            self.set_limit(limit, self.get(limit).map_or(amount, |own| own.min(amount)));
        }
    }

    /// Raises one limit, if it is set.
    pub fn raise_limit(&mut self, limit: LimitKind, amount: u64) {
        if let Some(own) = self.get(limit) {
            self.set_limit(limit, own.max(amount));
        }
    }

    /// Returns whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_key_a_name_and_amounts() {
        for (i, limit) in LimitKind::ALL.into_iter().enumerate() {
            let mut limits = Limits::default();
            limits.set_limit(limit, 4096 + i as u64);
            assert_eq!(limits.iter_limits().collect::<Vec<_>>(), [(limit, 4096 + i as u64)]);
            assert_eq!(LimitKind::from_name(limit.name()), Some(limit));
            assert_eq!(limit.parse_amount(&limit.format_amount(4096)), Ok(4096), "{limit}");
            assert!(limit.parse_amount("0").is_err(), "{limit}");
            assert_eq!(serde_json::to_value(limit).unwrap(), limit.name());
        }
        assert_eq!(LimitKind::from_name("swap"), None);
    }

    #[test]
    fn more_memory_than_any_machine_has_is_no_limit() {
        assert_eq!(LimitKind::Memory.parse_amount("64TiB"), Ok(MAX_MEMORY_BYTES));
        assert!(LimitKind::Memory.parse_amount("100TiB").is_err_and(|why| why.contains("64TiB")));
        assert!(LimitKind::Disk.parse_amount("100TiB").is_ok());
    }

    #[test]
    fn limits_are_lowered_and_raised_one_by_one() {
        let mut limits = Limits { processes: Some(10), memory_bytes: Some(100), ..Limits::default() };
        limits.lower_to(&Limits { processes: Some(20), memory_bytes: Some(50), wall_ms: Some(5), ..Limits::default() });
        assert_eq!((limits.processes, limits.memory_bytes, limits.wall_ms), (Some(10), Some(50), Some(5)));
        limits.raise_limit(LimitKind::Memory, 70);
        limits.raise_limit(LimitKind::Processes, 3);
        limits.raise_limit(LimitKind::Disk, 3);
        assert_eq!((limits.processes, limits.memory_bytes, limits.disk_bytes), (Some(10), Some(70), None));
    }
}
