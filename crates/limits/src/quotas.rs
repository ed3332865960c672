//! Quotas of the kernel for a user as a whole. A user namespace has its own counts, and usage
//! inside also counts outside for the user who made it (namespaces(7)). So a run gets a share, and
//! the rest is left to the user.
//!
//! Must not depend on limits other than memory.

use std::ffi::{CStr, CString};

use rustix::param::page_size;
use stockade_model::Limits;

use super::numbers::read_number;

/// Divisor for the run's share of the user's quota.
const QUOTA_DIVISOR: u64 = 2;

/// A kernel setting for the namespaces of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceQuota {
    /// The file of the setting in procfs.
    pub file: &'static CStr,
    /// The value to write.
    pub amount: CString,
}

/// Returns the quotas of a run at level full. Skips settings that do not exist.
pub fn compute_quotas(limits: &Limits) -> Vec<NamespaceQuota> {
    let quota = |file, amount: u64| Some(NamespaceQuota { file, amount: CString::new(amount.to_string()).ok()? });
    let watches = [
        (c"/proc/sys/user/max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"),
        (c"/proc/sys/user/max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"),
    ];
    // Unattached System V segments are in no process's memory.
    let segments = limits.memory_bytes.map(|bytes| (c"/proc/sys/kernel/shmall", bytes / page_size() as u64));
    let watches = watches.into_iter().filter_map(|(file, of_user)| Some((file, read_number(of_user)? / QUOTA_DIVISOR)));
    watches.chain(segments).filter_map(|(file, amount)| quota(file, amount.max(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_gets_half_of_the_watches_and_segments_within_its_memory() {
        let of_user = read_number("/proc/sys/fs/inotify/max_user_instances").unwrap();
        let all = compute_quotas(&Limits { memory_bytes: Some(8 << 20), ..Limits::default() });
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].amount.to_str().unwrap(), (of_user / 2).to_string());
        assert_eq!(all[2].amount.to_str().unwrap(), ((8 << 20) / page_size() as u64).to_string());
        assert_eq!(compute_quotas(&Limits::default()).len(), 2);
    }
}
