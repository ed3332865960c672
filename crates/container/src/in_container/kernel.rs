//! Differences between a runtime's own kernel and Linux that make programs fail. They are reported,
//! because code in the container cannot fix them.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use stockade_model::{LayerReport, LayerState};

/// Returns the layer of the enforcement report, if programs find less than Linux.
pub(super) fn kernel_report() -> Option<LayerReport> {
    let detail = "the runtime's kernel refuses a flag of statx(2) and newfstatat(2), AT_NO_AUTOMOUNT, with which `ls` \
                  and `stat` look at files: they fail";
    (!knows_no_automount()).then(|| LayerReport { state: LayerState::Partial, detail: detail.to_owned() })
}

/// Returns the kernel's boot identifier (random(4)). A runtime's own kernel has another one, or
/// none.
pub(crate) fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

/// gVisor refused it until 2023.
fn knows_no_automount() -> bool {
    statx(CWD, "/", AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE).map(drop) != Err(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reported_on_linux() {
        assert_eq!(kernel_report(), None);
    }
}
