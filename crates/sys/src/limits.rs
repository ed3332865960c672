//! Resource limits of other processes.

use rustix::process::{Pid, Rlimit};

use crate::Errno;
use crate::call::last_errno;

/// Returns the limit of file sizes of process `pid` (RLIMIT_FSIZE, prlimit(2)).
///
/// # Errors
/// ESRCH if there is no such process, EPERM if it belongs to another user.
pub fn file_size_limit(pid: Pid) -> Result<Rlimit, Errno> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: `limit` is a valid out pointer, and nothing is set.
    if unsafe { libc::prlimit64(pid, libc::RLIMIT_FSIZE, std::ptr::null(), &raw mut limit) } < 0 {
        return Err(last_errno());
    }
    let bounded = |value| (value != libc::RLIM64_INFINITY).then_some(value);
    Ok(Rlimit { current: bounded(limit.rlim_cur), maximum: bounded(limit.rlim_max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_limit_is_the_same_from_outside() {
        let own = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        assert_eq!(file_size_limit(rustix::process::getpid()), Ok(own));
    }
}
