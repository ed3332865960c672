//! Calls that change metadata of a file: mode, owner, times, extended attributes, and length by
//! path. Landlock mediates only the last of these.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, FileType, Gid, OFlags, Timespec, Timestamps, UTIME_NOW, Uid, XattrFlags, chownat, fcntl_getfl,
    ftruncate, removexattr, setxattr, utimensat,
};
use stockade_launch::ArgumentLayout;
use stockade_model::DeniedOperation;
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict, to_path};
use stockade_sys::{Errno, actor, resolve};

use super::brokered_call::{BrokeredCall, ObjectChange};
use super::call_result::{CallProgress, CallResult, native_access, refuse_if, refuse_operation};
use super::caller::CallingThread;
use super::opens::set_id;
use super::service::BrokerService;
use super::walk::ResolvedObject;

/// `XATTR_NAME_MAX` with its NUL.
const MAX_ATTRIBUTE_NAME_BYTES: usize = 256;
/// `XATTR_SIZE_MAX`.
const MAX_ATTRIBUTE_BYTES: u64 = 65_536;
const SET_ID_BITS: u32 = 0o6000;
/// Permission bits that let others than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const EXECUTABLE: u32 = 0o111;
/// Permission bits with which the owner of a directory can list it and examine its entries.
pub(super) const LISTABLE: u32 = 0o500;

/// The object that a call names.
enum MetadataSubject {
    /// By path, relative to a descriptor.
    Path { start: i32, path: CString, follow: bool },
    /// By descriptor.
    Descriptor(i32),
}

impl BrokerService {
    /// Reads a call that changes an object's metadata or length.
    pub(super) fn read_change(&self, caller: &CallingThread, shape: ArgumentLayout) -> CallResult<BrokeredCall> {
        let (subject, change) = match shape {
            ArgumentLayout::Truncate => {
                let length = caller.request.args[1];
                if length > i64::MAX as u64 {
                    return Err(Errno::INVAL.into());
                }
                (by_path(caller, true)?, ObjectChange::Length(length))
            }
            ArgumentLayout::Chmod { at, flags } => {
                let (start, index) = caller.first_path_argument(at);
                let flags = if flags { caller.int_argument(3) } else { 0 };
                (by_flags(caller, start, index, flags)?, ObjectChange::Mode(caller.unsigned_argument(index + 1)))
            }
            ArgumentLayout::ChmodDescriptor => {
                (first_descriptor(caller), ObjectChange::Mode(caller.unsigned_argument(1)))
            }
            ArgumentLayout::Chown { follow } => (by_path(caller, follow)?, read_owner(caller, 1)),
            ArgumentLayout::ChownDescriptor => (first_descriptor(caller), read_owner(caller, 1)),
            ArgumentLayout::ChownAt => {
                (by_flags(caller, caller.int_argument(0), 1, caller.int_argument(4))?, read_owner(caller, 2))
            }
            ArgumentLayout::TimesSeconds
            | ArgumentLayout::TimesMicroseconds { .. }
            | ArgumentLayout::TimesNanoseconds => read_time_change(caller, shape)?,
            ArgumentLayout::SetAttribute { follow } => (by_path(caller, follow)?, read_attribute(caller)?),
            ArgumentLayout::SetAttributeDescriptor => (first_descriptor(caller), read_attribute(caller)?),
            ArgumentLayout::RemoveAttribute { follow } => (by_path(caller, follow)?, no_attribute(caller)?),
            ArgumentLayout::RemoveAttributeDescriptor => (first_descriptor(caller), no_attribute(caller)?),
            _ => return Err(Errno::NOSYS.into()),
        };
        Ok(BrokeredCall::Change { object: self.open_subject(caller, subject)?, change })
    }

    /// Holds the object that a call names.
    fn open_subject(&self, caller: &CallingThread, subject: MetadataSubject) -> Result<ResolvedObject, Errno> {
        let object = match subject {
            MetadataSubject::Descriptor(number) => ResolvedObject::from_fd(open_changeable(caller, number)?)?,
            MetadataSubject::Path { start, path, .. } if path.is_empty() => {
                ResolvedObject::from_fd(caller.open_object(start)?)?
            }
            MetadataSubject::Path { start, path, follow } => {
                self.start_resolution(caller)?.resolve_object(start, &path, follow)?
            }
        };
        self.as_staged(object)
    }

    /// Changes an object.
    pub(super) fn change_object(&self, object: &ResolvedObject, change: &ObjectChange) -> CallResult {
        // A symbolic link has no mode.
        if object.file_type() == FileType::Symlink && matches!(change, ObjectChange::Mode(_)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        refuse_if(DeniedOperation::Metadata, &object.path, self.refusal_to_close(object, change))?;
        let is_opened = self.opens_closed(object, change);
        if !matches!(change, ObjectChange::Length(_)) && !is_opened && !self.is_harmless(object, change) {
            self.permit_change(object)?;
        }
        match change {
            ObjectChange::Length(length) => self.truncate_object(object, *length)?,
            ObjectChange::Mode(mode) => {
                self.change_mode(object, *mode)?;
                if is_opened {
                    self.surveys.borrow_mut().forget_closed();
                }
            }
            ObjectChange::Owner { user, group } => {
                if !self.is_mapped(*user, *group) {
                    return Err(Errno::INVAL.into());
                }
                chownat(self.through_object(object), c"", *user, *group, AtFlags::EMPTY_PATH)?;
            }
            ObjectChange::Times(times) => {
                utimensat(self.through_object(object), c"", times, AtFlags::EMPTY_PATH)?;
            }
            // The kernel permits only system attributes on a symbolic link.
            ObjectChange::SetAttribute { .. } | ObjectChange::RemoveAttribute { .. }
                if object.file_type() == FileType::Symlink =>
            {
                return Err(Errno::PERM.into());
            }
            ObjectChange::SetAttribute { name, value, flags } => {
                let held = self.through_object(object);
                setxattr(resolve::DescriptorPath::new(held.as_fd()).as_c_str(), name.as_c_str(), value, *flags)?;
            }
            ObjectChange::RemoveAttribute { name } => {
                let held = self.through_object(object);
                removexattr(resolve::DescriptorPath::new(held.as_fd()).as_c_str(), name.as_c_str())?;
            }
        }
        Ok(CallProgress::ZERO)
    }

    /// Checks whether `object` may be changed. If the kernel would refuse this to a user who is not
    /// the owner, the call fails with the kernel's error.
    fn permit_change(&self, object: &ResolvedObject) -> CallResult<()> {
        // No program can find a file without a name.
        let is_nameless = object.file_type() == FileType::RegularFile && object.stat.st_nlink == 0;
        if object.is_placeless() || is_nameless && self.powers.root_length(&object.path).is_some() {
            return Ok(());
        }
        match self.decide_operation(DeniedOperation::Metadata, &object.path) {
            PermissionVerdict::Allow => self.permit_linked(&object.stat, &object.path, DeniedOperation::Metadata),
            PermissionVerdict::Private => Ok(()),
            PermissionVerdict::Refuse(_) if object.stat.st_uid != self.own_user => Err(Errno::PERM.into()),
            PermissionVerdict::Refuse(refusal) => {
                Err(refuse_operation(DeniedOperation::Metadata, &object.path, refusal))
            }
        }
    }

    /// Returns whether a change neither makes git obey more nor lets others write. Programs that
    /// copy and unpack repositories make such changes to each known part of one.
    fn is_harmless(&self, object: &ResolvedObject, change: &ObjectChange) -> bool {
        let stat = &object.stat;
        let lets_in_nobody = |mode: u32| mode & WRITABLE_BY_OTHERS & !stat.st_mode == 0;
        let adds_nothing = match change {
            ObjectChange::Times(_) => true,
            ObjectChange::Mode(mode) => lets_in_nobody(*mode),
            ObjectChange::SetAttribute { name, value, .. } => mode_in_list(name, value).is_some_and(lets_in_nobody),
            ObjectChange::Owner { user, group } => {
                user.is_none_or(|user| user.as_raw() == stat.st_uid)
                    && group.is_none_or(|group| group.as_raw() == stat.st_gid)
            }
            ObjectChange::RemoveAttribute { name } => name.as_c_str() == c"system.posix_acl_default",
            ObjectChange::Length(_) => false,
        };
        adds_nothing
            && (self.powers.is_known_part(&object.path) || self.powers.is_project_settings(&object.path))
            && self.refusal_of_name(DeniedOperation::Metadata, &object.path).is_none()
            && self.permit_linked(stat, &object.path, DeniedOperation::Metadata).is_ok()
    }

    /// Returns whether a change opens a directory or a file that the survey could not read. So far
    /// nothing in its tree was permitted, and the tree is surveyed again afterwards.
    fn opens_closed(&self, object: &ResolvedObject, change: &ObjectChange) -> bool {
        let (ObjectChange::Mode(mode), stat) = (change, &object.stat) else { return false };
        let Some(needed) = needed_bits(object.file_type()) else { return false };
        let unsafe_bits = match object.file_type() {
            FileType::Directory => WRITABLE_BY_OTHERS,
            _ => WRITABLE_BY_OTHERS | EXECUTABLE,
        };
        stat.st_uid == self.own_user
            && mode & needed == needed
            && stat.st_mode & needed != needed
            && mode & unsafe_bits & !stat.st_mode == 0
            && self.make_surveys().is_ok()
            && self.surveys.borrow().are_closed(&object.path)
            && (self.powers.is_known_part(&object.path)
                || object.file_type() == FileType::Directory && self.powers.is_directory_of_settings(&object.path)
                || self.powers.decide_operation(DeniedOperation::Metadata, &to_path(&object.path), &|path| {
                    self.exists_in_view(path)
                }) == PermissionVerdict::Allow)
    }

    /// Returns the refusal of a change that hides an object from the surveys of later runs. These
    /// runs could write nothing, and could not always open the object again.
    fn refusal_to_close(&self, object: &ResolvedObject, change: &ObjectChange) -> Option<PermissionRefusal> {
        let needed = needed_bits(object.file_type())?;
        let closes = match change {
            ObjectChange::Mode(mode) => object.stat.st_mode & needed & !mode != 0,
            ObjectChange::SetAttribute { name, value, .. } => {
                owner_bits_in_list(name, value).is_some_and(|bits| object.stat.st_mode & needed & !(bits << 6) != 0)
            }
            _ => false,
        };
        let is_root = object.file_type() == FileType::Directory && self.powers.is_named(&object.path);
        (closes && (is_root || self.powers.is_known_part(&object.path))).then(closing)
    }

    fn truncate_object(&self, object: &ResolvedObject, length: u64) -> CallResult<()> {
        match object.file_type() {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::RegularFile => {}
            _ => return Err(Errno::INVAL.into()),
        }
        let native = || native_access(&object.fd, Access::WRITE_OK);
        self.permit_or_fail(DeniedOperation::Truncate, &object.path, native)?;
        self.permit_linked(&object.stat, &object.path, DeniedOperation::Truncate)?;
        let held = self.through_object(object);
        Ok(ftruncate(resolve::reopen(held.as_fd(), OFlags::WRONLY | OFlags::NONBLOCK)?, length)?)
    }

    fn change_mode(&self, object: &ResolvedObject, mode: u32) -> CallResult<()> {
        let mode = mode & 0o7777;
        if mode & SET_ID_BITS != 0 && object.file_type() != FileType::Directory {
            return Err(refuse_operation(DeniedOperation::Metadata, &object.path, set_id()));
        }
        Ok(actor::change_mode(self.through_object(object).as_fd(), mode)?)
    }
}

/// Returns the refusal to close an object that surveys must read.
pub(super) fn closing() -> PermissionRefusal {
    let rule = "a directory or a file that Stockade must read stays readable for its owner";
    PermissionRefusal::without_grant(rule)
}

/// Returns the permission bits of the owner that a survey needs to read an object of this kind.
fn needed_bits(kind: FileType) -> Option<u32> {
    match kind {
        FileType::Directory => Some(LISTABLE),
        FileType::RegularFile => Some(0o400),
        _ => None,
    }
}

/// Returns the entries of an access list, eight bytes each.
fn access_entries<'v>(name: &CStr, value: &'v [u8]) -> Option<&'v [u8]> {
    value.strip_prefix(&2_u32.to_le_bytes()).filter(|_| name == c"system.posix_acl_access")
}

/// Returns the permissions that an access list (acl(5)) gives the owner, in the lowest three bits.
fn owner_bits_in_list(name: &CStr, value: &[u8]) -> Option<u32> {
    let (entries, _) = access_entries(name, value)?.as_chunks::<8>();
    entries.iter().find(|entry| entry[..2] == [1, 0]).map(|entry| u32::from(entry[2]))
}

/// Returns the mode that an access list (acl(5)) sets, if it has entries for owner, group and
/// others only. `cp` copies a mode in this way. The format is that of linux/posix_acl_xattr.h.
fn mode_in_list(name: &CStr, value: &[u8]) -> Option<u32> {
    let (entries, []) = access_entries(name, value)?.as_chunks::<8>() else { return None };
    let [[1, 0, user, 0, ..], [4, 0, group, 0, ..], [0x20, 0, others, 0, ..]] = entries else { return None };
    let bits = |bits: &u8| (*bits < 8).then_some(u32::from(*bits));
    Some(bits(user)? << 6 | bits(group)? << 3 | bits(others)?)
}

/// Holds the object of descriptor `number`. Fails for a descriptor that only names (`O_PATH`),
/// because the object cannot be changed by such a descriptor.
fn open_changeable(caller: &CallingThread, number: i32) -> Result<OwnedFd, Errno> {
    match caller.duplicate_descriptor(number) {
        Ok(descriptor) if fcntl_getfl(&descriptor)?.contains(OFlags::PATH) => Err(Errno::BADF),
        // The seccomp filters of container engines refuse the copy; the object serves as well.
        Err(Errno::PERM | Errno::NOSYS) => match caller.is_name_alone(number)? {
            true => Err(Errno::BADF),
            false => caller.open_object(number),
        },
        other => other,
    }
}

/// Reads user and group; `first` is the index of the user, and the group follows it.
fn read_owner(caller: &CallingThread, first: usize) -> ObjectChange {
    let id = |index| Some(caller.unsigned_argument(index)).filter(|id| *id != u32::MAX);
    ObjectChange::Owner { user: id(first).map(Uid::from_raw), group: id(first + 1).map(Gid::from_raw) }
}

fn read_time_change(caller: &CallingThread, shape: ArgumentLayout) -> Result<(MetadataSubject, ObjectChange), Errno> {
    let (start, index) = match shape {
        ArgumentLayout::TimesSeconds | ArgumentLayout::TimesMicroseconds { at: false } => (libc::AT_FDCWD, 0),
        _ => (caller.int_argument(0), 1),
    };
    let change = ObjectChange::Times(read_times(caller, index + 1, shape)?);
    let flags = if shape == ArgumentLayout::TimesNanoseconds { caller.int_argument(3) } else { 0 };
    let subject = match caller.optional_path(index)? {
        Some(path) => by_text(start, path, flags)?,
        None if start == libc::AT_FDCWD => return Err(Errno::FAULT),
        None if flags != 0 => return Err(Errno::INVAL),
        None => MetadataSubject::Descriptor(start),
    };
    Ok((subject, change))
}

fn read_attribute(caller: &CallingThread) -> Result<ObjectChange, Errno> {
    let name = attribute_name(caller)?;
    let (size, flags) = (caller.request.args[3], caller.unsigned_argument(4));
    if size > MAX_ATTRIBUTE_BYTES {
        return Err(Errno::TOOBIG);
    }
    let value = caller.read_bytes(2, size as usize)?;
    Ok(ObjectChange::SetAttribute { name, value, flags: XattrFlags::from_bits_retain(flags) })
}

fn no_attribute(caller: &CallingThread) -> Result<ObjectChange, Errno> {
    Ok(ObjectChange::RemoveAttribute { name: attribute_name(caller)? })
}

/// Names the object by the descriptor in the first argument.
fn first_descriptor(caller: &CallingThread) -> MetadataSubject {
    MetadataSubject::Descriptor(caller.int_argument(0))
}

/// Names the object by the path in the first argument.
fn by_path(caller: &CallingThread, follow: bool) -> Result<MetadataSubject, Errno> {
    Ok(MetadataSubject::Path { start: libc::AT_FDCWD, path: caller.read_path(0)?, follow })
}

fn by_flags(caller: &CallingThread, start: i32, index: usize, flags: i32) -> Result<MetadataSubject, Errno> {
    by_text(start, caller.read_path(index)?, flags)
}

/// Applies `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH` to a path.
fn by_text(start: i32, path: CString, flags: i32) -> Result<MetadataSubject, Errno> {
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::INVAL);
    }
    if !path.is_empty() {
        return Ok(MetadataSubject::Path { start, path, follow: flags & libc::AT_SYMLINK_NOFOLLOW == 0 });
    }
    match (flags & libc::AT_EMPTY_PATH != 0, start) {
        (false, _) => Err(Errno::NOENT),
        (true, libc::AT_FDCWD) => Ok(MetadataSubject::Path { start, path: c".".to_owned(), follow: true }),
        // Permitted for `O_PATH` descriptors too, so the descriptor is not copied.
        (true, _) => Ok(MetadataSubject::Path { start, path, follow: true }),
    }
}

fn attribute_name(caller: &CallingThread) -> Result<CString, Errno> {
    match caller.read_string(1, MAX_ATTRIBUTE_NAME_BYTES) {
        Err(Errno::NAMETOOLONG) => Err(Errno::RANGE),
        Ok(name) if name.is_empty() => Err(Errno::RANGE),
        other => other,
    }
}

/// Reads both times of a call; a null pointer means the current time.
fn read_times(caller: &CallingThread, index: usize, shape: ArgumentLayout) -> Result<Timestamps, Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    if caller.request.args[index] == 0 {
        return Ok(Timestamps { last_access: now, last_modification: now });
    }
    let words = if shape == ArgumentLayout::TimesSeconds { 2 } else { 4 };
    let bytes = caller.read_bytes(index, words * 8)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
        i64::from_ne_bytes(word)
    };
    let time = |first: usize| match shape {
        ArgumentLayout::TimesSeconds => Ok(Timespec { tv_sec: word(first / 2), tv_nsec: 0 }),
        ArgumentLayout::TimesNanoseconds => Ok(Timespec { tv_sec: word(first), tv_nsec: word(first + 1) }),
        _ if !(0..1_000_000).contains(&word(first + 1)) => Err(Errno::INVAL),
        _ => Ok(Timespec { tv_sec: word(first), tv_nsec: word(first + 1) * 1000 }),
    };
    Ok(Timestamps { last_access: time(0)?, last_modification: time(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_three_is_a_mode() {
        let entry = |tag: u8, bits: u8| [tag, 0, bits, 0, 255, 255, 255, 255];
        let list = |entries: &[[u8; 8]]| [&[2, 0, 0, 0][..], &entries.concat()].concat();
        let access = c"system.posix_acl_access";
        let plain = list(&[entry(1, 7), entry(4, 5), entry(0x20, 4)]);
        assert_eq!(mode_in_list(access, &plain), Some(0o754));
        assert_eq!(mode_in_list(c"system.posix_acl_default", &plain), None);
        assert_eq!(mode_in_list(c"user.x", &plain), None);
        assert_eq!(mode_in_list(access, &plain[..plain.len() - 1]), None);
        assert_eq!(mode_in_list(access, &list(&[entry(1, 7), entry(2, 7), entry(4, 5), entry(0x20, 4)])), None);
        assert_eq!(mode_in_list(access, &list(&[entry(1, 7), entry(4, 5), entry(0x20, 8)])), None);
        assert_eq!(mode_in_list(access, b""), None);
        let with_mask = list(&[entry(1, 3), entry(2, 7), entry(4, 5), entry(0x10, 7), entry(0x20, 4)]);
        assert_eq!(owner_bits_in_list(access, &with_mask), Some(3));
        assert_eq!(owner_bits_in_list(access, b""), None);
    }
}
