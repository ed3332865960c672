//! Overlays over directories of the host, in the user namespace of the run. All but `merge_steps`
//! runs in the init (system calls only); `allow_in_layer` also runs in its caller.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Timespec, openat};
use rustix::path::Arg;
use rustix::thread::nanosleep;
use stockade_sys::Errno;
use stockade_sys::landlock::access;
use stockade_sys::mount::{MountRestrictions, attach_mount, new_filesystem};
use stockade_sys::resolve::DescriptorPath;

use super::layout::{IdentifiedDirectory, MergedOverlay, MountAttachment, MountKind, OverlayWriteLayer};
use super::message::LaunchMessage;
use super::step::{BuildContext, InitStep, open_plain, verify_identity};

/// Most retries for upper directories that are still mounted, and the delays: 0.1 s of short
/// delays, then 3 s of long ones for a busy machine. All layers of a run share them, because the
/// sandbox must be ready within 10 s.
const BUSY_RETRIES: u32 = 600;
const SHORT_RETRIES: u32 = 400;
const SHORT_RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000 };
const LONG_RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 15_000_000 };

/// Returns the steps that make the run's own overlays of a layout.
pub(super) fn merge_steps(attachments: &[MountAttachment]) -> impl Iterator<Item = InitStep> {
    attachments.iter().filter_map(|attachment| {
        let MountKind::Merged(merged) = &attachment.mount_kind else { return None };
        let lower = IdentifiedDirectory { path: attachment.path.clone(), identity: attachment.identity };
        Some(InitStep::Merge { index: merged.index, lower, overlay: merged.overlay.clone()? })
    })
}

/// Makes an overlay that is attached later. If that fails, the directory stays read-only, as in the
/// root.
pub(super) fn prepare_overlay(
    context: &mut BuildContext<'_>,
    index: usize,
    lower: &IdentifiedDirectory,
    overlay: &OverlayWriteLayer,
) -> Result<(), Errno> {
    let tree = lay_over_when_free(lower, overlay, &mut context.busy_retries);
    if let (Ok(tree), Some(slot)) = (tree, context.merged.get_mut(index)) {
        *slot = Some(tree);
    }
    Ok(())
}

/// Takes over the layers from the caller's messages: copies of mounts that another process holds.
pub(super) fn take_layers(context: &mut BuildContext<'_>) -> Result<(), Errno> {
    let mut number = 0;
    loop {
        let Some((LaunchMessage::Layers { is_last }, received)) = LaunchMessage::receive_from(context.control, true)?
        else {
            return Err(Errno::PROTO);
        };
        for tree in received.descriptors.into_iter().flatten() {
            *context.merged.get_mut(number).ok_or(Errno::PROTO)? = Some(tree);
            number += 1;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Makes an overlay of this user namespace. Its marks are attributes that the user of the namespace
/// may set. `/proc` must still be the old one: the options name the directories by their
/// descriptors, so that no character of a path can be misread. The overlay is volatile (kernel
/// 5.10), because otherwise each file would be flushed to the disk on its first write. The stage is
/// flushed once, at its end. With an `index` the kernel refuses an upper directory that is already
/// mounted (EBUSY).
pub(super) fn lay_over(
    workspace: &IdentifiedDirectory,
    overlay: &OverlayWriteLayer,
    index: &CStr,
) -> Result<OwnedFd, Errno> {
    let hold = |spot: &IdentifiedDirectory| {
        let object = open_plain(CWD, &spot.path, ResolveFlags::empty())?;
        verify_identity(object.as_fd(), spot.identity)?;
        Ok::<_, Errno>(object)
    };
    let (lower, upper, work) = (hold(workspace)?, hold(&overlay.upper)?, hold(&overlay.work)?);
    overlay_of(lower.as_fd(), (upper.as_fd(), work.as_fd()), index)
}

/// Makes the same overlay of directories that are already open.
pub(super) fn overlay_of(
    lower: BorrowedFd<'_>,
    (upper, work): (BorrowedFd<'_>, BorrowedFd<'_>),
    index: &CStr,
) -> Result<OwnedFd, Errno> {
    let [lower, upper, work] = [lower, upper, work].map(DescriptorPath::new);
    let options = [
        (c"lowerdir", lower.as_c_str()),
        (c"upperdir", upper.as_c_str()),
        (c"workdir", work.as_c_str()),
        (c"userxattr", c""),
        (c"index", index),
        (c"metacopy", c"off"),
        (c"volatile", c""),
    ];
    new_filesystem(
        c"overlay",
        &options,
        MountRestrictions { devices: true, setuid: true, ..MountRestrictions::default() },
    )
}

/// Attaches an overlay over a directory, if the overlay exists. Without it, no run can change the
/// directory.
pub(super) fn attach_merged(
    context: &mut BuildContext<'_>,
    attachment: &MountAttachment,
    merged: &MergedOverlay,
) -> Result<(), Errno> {
    let Some(tree) = context.merged.get_mut(merged.index).and_then(Option::take) else {
        context.unmerged |= 1 << merged.index;
        return Ok(());
    };
    let target = open_plain(context.root_fd()?, attachment.relative_path(), ResolveFlags::IN_ROOT)?;
    attach_mount(tree.as_fd(), target.as_fd())?;
    if merged.overlay.is_none() {
        // The process that passed the layer has done that.
        return Ok(());
    }
    allow_in_layer(tree.as_fd(), merged.is_whole(), merged.directories.iter(), |object, rights| {
        context.allow_rights(object, rights)
    })
}

/// Lets the command change a layer, or these directories in it, without the broker.
pub(super) fn allow_in_layer(
    layer: BorrowedFd<'_>,
    is_whole: bool,
    directories: impl Iterator<Item = impl Arg>,
    allow: impl Fn(BorrowedFd<'_>, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let rights = access::change_rights(u32::MAX);
    if is_whole {
        return allow(layer, rights);
    }
    for name in directories {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(layer, name, flags, Mode::empty()) {
            Ok(directory) => allow(directory.as_fd(), rights)?,
            // Another run may just have put another object there. The broker then decides.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Makes an overlay, with retries while the upper directory is busy. The kernel may still be
/// removing the mounts of a run that has ended.
fn lay_over_when_free(
    lower: &IdentifiedDirectory,
    overlay: &OverlayWriteLayer,
    retries: &mut u32,
) -> Result<OwnedFd, Errno> {
    loop {
        match lay_over(lower, overlay, c"on") {
            Err(Errno::BUSY) if *retries < BUSY_RETRIES => {}
            other => return other,
        }
        let _ = nanosleep(if *retries < SHORT_RETRIES { &SHORT_RETRY_DELAY } else { &LONG_RETRY_DELAY });
        *retries += 1;
    }
}
