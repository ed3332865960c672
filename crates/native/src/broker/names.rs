//! Calls that make, move or remove a name.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstat, linkat, mkdirat, mknodat, openat2,
    renameat_with, symlinkat, unlinkat,
};
use stockade_model::{Grant, Operation};
use stockade_sys::{Errno, resolve};

use super::caller::Caller;
use super::opens::set_id;
use super::service::{Failure, Handled, Reply, Service, native_access, refused};
use super::table::Shape;
use super::walk::{Object, Place};
use crate::powers::{Refusal, Verdict};

impl Service {
    pub(super) fn name(&mut self, caller: &Caller, shape: Shape) -> Handled {
        match shape {
            Shape::Mkdir { at } => self.make_directory(caller, at),
            Shape::Mknod { at } => self.make_node(caller, at),
            Shape::Symlink { at } => self.make_link(caller, at),
            Shape::Link { at } => self.make_name(caller, at),
            Shape::Rename { at, flags } => self.rename(caller, at, flags),
            Shape::Remove { directory } => {
                let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                self.remove(caller, libc::AT_FDCWD, 0, flags)
            }
            _ => {
                let flags = caller.unsigned(2);
                if flags & !(libc::AT_REMOVEDIR as u32) != 0 {
                    return Err(Errno::INVAL.into());
                }
                self.remove(caller, caller.int(0), 1, AtFlags::from_bits_retain(flags))
            }
        }
    }

    /// The place of a name that is to be made, the decision taken. What would
    /// fail anyway fails as it would.
    fn new_place(&self, caller: &Caller, start: i32, index: usize, operation: Operation) -> Result<Place, Failure> {
        let path = caller.path(index)?;
        let place = self.walk(caller)?.place(start, &path)?;
        self.permit_new(&place, operation)?;
        Ok(place)
    }

    fn permit_new(&self, place: &Place, operation: Operation) -> Result<Verdict, Failure> {
        if place.special {
            // Never a name that can be made; the kernel has its own errors.
            return Ok(Verdict::Allow);
        }
        let path = place.path();
        match self.decide(operation, &path) {
            Verdict::Refuse(refusal) => {
                if place.step().is_ok() {
                    return Err(Errno::EXIST.into());
                }
                native_access(&place.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                Err(refused(operation, &path, refusal))
            }
            verdict => Ok(verdict),
        }
    }

    fn make_directory(&self, caller: &Caller, at: bool) -> Handled {
        let (start, index) = first(caller, at);
        let place = self.new_place(caller, start, index, Operation::Mkdir)?;
        let mode = self.masked(caller, caller.unsigned(index + 1))?;
        mkdirat(&place.directory.fd, place.name_as_written().as_c_str(), mode)?;
        Ok(Reply::Value(0))
    }

    fn make_node(&self, caller: &Caller, at: bool) -> Handled {
        let (start, index) = first(caller, at);
        let mode = caller.unsigned(index + 1);
        let kind = match mode & libc::S_IFMT {
            0 => FileType::RegularFile,
            kind => FileType::from_raw_mode(kind),
        };
        if kind == FileType::Unknown {
            return Err(Errno::INVAL.into());
        }
        let place = self.new_place(caller, start, index, Operation::Mknod)?;
        if mode & 0o6000 != 0 {
            return Err(refused(Operation::Mknod, &place.path(), set_id()));
        }
        let device = caller.request.args[index + 2];
        let mode = self.masked(caller, mode)?;
        mknodat(&place.directory.fd, place.name_as_written().as_c_str(), kind, mode, device)?;
        Ok(Reply::Value(0))
    }

    fn make_link(&self, caller: &Caller, at: bool) -> Handled {
        let (start, index) = if at { (caller.int(1), 2) } else { (libc::AT_FDCWD, 1) };
        let text = caller.path(0)?;
        let place = self.new_place(caller, start, index, Operation::Symlink)?;
        symlinkat(text.as_c_str(), &place.directory.fd, place.name_as_written().as_c_str())?;
        Ok(Reply::Value(0))
    }

    fn remove(&self, caller: &Caller, start: i32, index: usize, flags: AtFlags) -> Handled {
        let path = caller.path(index)?;
        let place = self.walk(caller)?.place(start, &path)?;
        if !place.special {
            let object = place.path();
            if let Err(failure) = self.permit_old(&object, Operation::Remove) {
                let kind = FileType::from_raw_mode(fstat(place.step()?)?.st_mode);
                match (kind == FileType::Directory, flags.contains(AtFlags::REMOVEDIR)) {
                    (true, false) => return Err(Errno::ISDIR.into()),
                    (false, true) => return Err(Errno::NOTDIR.into()),
                    _ => native_access(&place.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?,
                }
                return Err(failure);
            }
        }
        unlinkat(&place.directory.fd, place.name_as_written().as_c_str(), flags)?;
        Ok(Reply::Value(0))
    }

    /// May the name `path` go away?
    fn permit_old(&self, path: &[u8], operation: Operation) -> Result<Verdict, Failure> {
        let verdict = self.permit(operation, path)?;
        match self.powers.protected_beneath(&to_path(path)) {
            Some(refusal) => Err(refused(operation, path, refusal)),
            None => Ok(verdict),
        }
    }

    fn rename(&self, caller: &Caller, at: bool, with_flags: bool) -> Handled {
        let flags = RenameFlags::from_bits_retain(if with_flags { caller.unsigned(4) } else { 0 });
        let (old_path, new_path) = (caller.path(usize::from(at))?, caller.path(if at { 3 } else { 1 })?);
        let (old_start, new_start) = if at { (caller.int(0), caller.int(2)) } else { (libc::AT_FDCWD, libc::AT_FDCWD) };
        let walk = self.walk(caller)?;
        let old = walk.place(old_start, &old_path)?;
        let new = walk.place(new_start, &new_path)?;
        if !old.special && !new.special {
            self.permit_rename(&old, &new, flags.contains(RenameFlags::EXCHANGE))?;
        }
        renameat_with(
            &old.directory.fd,
            old.name_as_written().as_c_str(),
            &new.directory.fd,
            new.name_as_written().as_c_str(),
            flags,
        )?;
        Ok(Reply::Value(0))
    }

    fn permit_rename(&self, old: &Place, new: &Place, exchange: bool) -> Result<(), Failure> {
        let moved = old.step()?;
        let (from, to) = (old.path(), new.path());
        let both = self
            .permit_old(&from, Operation::Rename)
            .and_then(|one| Ok((one, self.permit_old(&to, Operation::Rename)?)))
            .and_then(|both| {
                self.permit_carried(&moved, &from, &to)?;
                match new.step() {
                    Ok(other) if exchange => self.permit_carried(&other, &to, &from)?,
                    _ => {}
                }
                Ok(both)
            });
        match both {
            // A private tree is a filesystem of its own, also where it only
            // seems to be one: what was made there was made under other rules.
            Ok((one, other)) if one != other => Err(Errno::XDEV.into()),
            Ok(_) => Ok(()),
            Err(failure) => {
                native_access(&old.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                native_access(&new.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                Err(failure)
            }
        }
    }

    /// A directory is not moved where that would make or unmake a protected
    /// name inside it: `~/x` with a `git` in it, to `~/.config`.
    fn permit_carried(&self, moved: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        if FileType::from_raw_mode(fstat(moved)?.st_mode) != FileType::Directory {
            return Ok(());
        }
        for end in [from, to] {
            let end = to_path(end);
            if self.powers.is_private(&end) {
                continue;
            }
            for inner in self.powers.units_carried_by(&end) {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if openat2(moved, &inner, flags, Mode::empty(), ResolveFlags::BENEATH).is_ok() {
                    let unit = end.join(inner);
                    let refusal =
                        Refusal { rule: "a protected name would be moved".to_owned(), grant: Some(Grant::Write(unit)) };
                    return Err(refused(Operation::Rename, end.as_os_str().as_encoded_bytes(), refusal));
                }
            }
        }
        Ok(())
    }

    /// `link`: a second name for a file. Whoever may not write the file under
    /// its first name gets no second one to write it by.
    fn make_name(&self, caller: &Caller, at: bool) -> Handled {
        let flags = if at { caller.int(4) } else { 0 };
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        let old_path = caller.path(usize::from(at))?;
        let (old_start, new_start, new_index) =
            if at { (caller.int(0), caller.int(2), 3) } else { (libc::AT_FDCWD, libc::AT_FDCWD, 1) };
        let source = if old_path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            Object::of(caller.object(old_start)?)?
        } else {
            let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
            self.walk(caller)?.find(old_start, &old_path, follow)?
        };
        let new = self.walk(caller)?.place(new_start, &caller.path(new_index)?)?;
        let verdict = self.permit_new(&new, Operation::Link)?;
        if source.is_placeless() {
            return Err(Errno::XDEV.into());
        }
        let of_source = self.permit_source(&source)?;
        if verdict != of_source && !new.special {
            return Err(Errno::XDEV.into());
        }
        let path = resolve::DescriptorPath::new(source.fd.as_fd());
        let name = new.name_as_written();
        linkat(CWD, path.as_c_str(), &new.directory.fd, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)?;
        Ok(Reply::Value(0))
    }

    fn permit_source(&self, source: &Object) -> Result<Verdict, Failure> {
        if source.kind() == FileType::Directory {
            return Err(Errno::PERM.into());
        }
        match self.decide(Operation::Write, &source.path) {
            // What lies outside lies on another mount: that is what a program
            // is told, and it copies instead.
            Verdict::Refuse(_) if !self.powers.is_in_writable_root(&to_path(&source.path)) => Err(Errno::XDEV.into()),
            Verdict::Refuse(refusal) => Err(refused(Operation::Link, &source.path, refusal)),
            verdict => Ok(verdict),
        }
    }
}

/// Where the first path of a call starts, and its index.
fn first(caller: &Caller, at: bool) -> (i32, usize) {
    if at { (caller.int(0), 1) } else { (libc::AT_FDCWD, 0) }
}

fn to_path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}
