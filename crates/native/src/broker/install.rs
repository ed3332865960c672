//! Puts files in guarded paths. A file that gets a guarded name by a grant is a new file that the
//! broker wrote with the same content. The original may have another name or be open elsewhere, and
//! later writes to it would change the guarded path without a grant.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, fstat, futimens, linkat, openat,
    renameat_with, unlinkat,
};
use stockade_model::DeniedOperation;
use stockade_permissions::powers::INSTALL_PREFIX;
use stockade_sys::{Errno, actor, resolve};

use super::call_result::CallResult;
use super::service::BrokerService;
use super::view::{NameHandle, is_same_object};
use super::walk::ResolvedName;

/// Largest file that is copied; larger ones fail with EXDEV, so that the program copies them itself.
const MAX_INSTALLED_BYTES: u64 = 16 << 20;
/// Number of temporary names that are tried for the copy.
const MAX_NAME_ATTEMPTS: u32 = 16;

impl BrokerService {
    /// Returns whether one of two paths is guarded and no single root covers both.
    pub(super) fn is_across_guards(&self, one: &[u8], other: &[u8]) -> bool {
        self.powers.root_length(one).map(|length| &one[..length])
            != self.powers.root_length(other).map(|length| &other[..length])
            && (self.is_guarded(one) || self.is_guarded(other))
    }

    /// Returns whether a rename would bring an object into a guarded path.
    pub(super) fn changes_owner(&self, (from, to): (&[u8], &[u8]), flags: RenameFlags) -> CallResult<bool> {
        if !self.is_across_guards(from, to) {
            return Ok(false);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            return Err(Errno::XDEV.into());
        }
        Ok(self.is_guarded(to))
    }

    /// Puts a copy of the file at `old` at the name `new` and removes `old`. A directory fails
    /// with EXDEV: programs then copy its files one by one.
    pub(super) fn install_copy(&self, old: &ResolvedName, new: &ResolvedName, flags: RenameFlags) -> CallResult<()> {
        let held = old.open_nofollow()?;
        let stat = fstat(&held)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > MAX_INSTALLED_BYTES {
            return Err(Errno::XDEV.into());
        }
        let [source, target] = self.through_both(old, new);
        let copy = copy_of(&held, target.directory.as_fd(), stat.st_mode & 0o1777)?;
        let modified = Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ };
        futimens(&copy, &Timestamps { last_access: modified, last_modification: modified })?;
        link_copy(&copy, &target, flags)?;
        self.confirm_new(&target, DeniedOperation::Rename)?;
        Ok(remove_unchanged(&source, &stat)?)
    }
}

/// Removes the name `old`, if it still names the object with `stat`.
pub(super) fn remove_unchanged(old: &NameHandle<'_>, stat: &Stat) -> Result<(), Errno> {
    match old.name.open_nofollow().and_then(fstat) {
        Ok(found) if is_same_object(stat, &found) => old.unlink(AtFlags::empty()),
        _ => Ok(()),
    }
}

/// Creates a file without a name in `directory`, with the content of a held file.
fn copy_of(held: &OwnedFd, directory: BorrowedFd<'_>, mode: u32) -> Result<OwnedFd, Errno> {
    let source = File::from(resolve::reopen(held.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // The filesystem may lack such files; the program then copies by itself.
    let copy = openat(directory, c".", flags, Mode::from_raw_mode(0o600)).map_err(|_| Errno::XDEV)?;
    let mut copy = File::from(copy);
    io::copy(&mut source.take(MAX_INSTALLED_BYTES), &mut copy)
        .map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
    let copy = OwnedFd::from(copy);
    actor::change_mode(copy.as_fd(), mode)?;
    Ok(copy)
}

/// Gives `copy` the name of `new`, and no other.
pub(super) fn link_copy(copy: &OwnedFd, new: &NameHandle<'_>, flags: RenameFlags) -> Result<(), Errno> {
    let (directory, new_name) = (&new.directory, &new.name.name);
    let by_descriptor = resolve::DescriptorPath::new(copy.as_fd());
    let link = |name: &CString| linkat(CWD, by_descriptor.as_c_str(), directory, name, AtFlags::SYMLINK_FOLLOW);
    if flags.contains(RenameFlags::NOREPLACE) {
        return link(new_name);
    }
    for number in 0..MAX_NAME_ATTEMPTS {
        let name = format!("{INSTALL_PREFIX}{}-{number}", std::process::id());
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        match link(&name) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(()) => {
                let put = renameat_with(directory, &name, directory, new_name, RenameFlags::empty());
                if put.is_err() {
                    // The temporary name is a second name of the file.
                    let _ = unlinkat(directory, &name, AtFlags::empty());
                    return put;
                }
                // Another broker may have given it a second name meanwhile.
                if fstat(copy)?.st_nlink > 1 {
                    new.unlink(AtFlags::empty())?;
                    return Err(Errno::BUSY);
                }
                return Ok(());
            }
        }
    }
    Err(Errno::EXIST)
}
