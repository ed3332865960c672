//! Where the kernel of a container's runtime does otherwise than Linux, so that programs
//! fail in it: told, since nothing can be done about it from within.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use stockade_model::{LayerReport, LayerState};

/// The line of the enforcement report, where programs find less than Linux.
pub(super) fn report() -> Option<LayerReport> {
    let detail = "the runtime's kernel refuses a flag of statx(2) and newfstatat(2), AT_NO_AUTOMOUNT, with which `ls` \
                  and `stat` look at files: they fail";
    (!knows_no_automount()).then(|| LayerReport { state: LayerState::Partial, detail: detail.to_owned() })
}

/// The number of this start of the kernel (random(4)). One of the runtime's own has another,
/// or none.
pub(crate) fn boot() -> Option<String> {
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
    fn nothing_is_told_of_linux() {
        assert_eq!(report(), None);
    }
}
