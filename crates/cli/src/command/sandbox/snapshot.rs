//! Snapshots: copies of the files of a sandbox at one moment, and sandboxes that start with them.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stockade_backend_api::{SandboxError, SandboxTree as Which};
use stockade_files::{ContentLimits, FileTree};
use stockade_lifecycle::{HiddenFiles, Lifecycle, LifecycleError, OpenSandbox, open_files};
use stockade_model::SandboxId;
use stockade_store::sandboxes::SandboxLease;

use super::super::{CommandResult, print_remark};
use super::copy::{MAX_COPY_ENTRIES, host_directory, plain_directory};
use super::copy_rules::allow_all_guard;
use super::{exec, open_lifecycle};
use crate::exit;
use crate::failure::{CliError, quote_path};
use crate::locations;
use crate::render::sandbox as text;

/// Trees of a snapshot, with their names in it.
const SNAPSHOT_TREES: [(Which, &str); 2] = [(Which::Workspace, "workspace"), (Which::Home, "home")];

/// Copies the files of a sandbox to a new directory.
///
/// # Errors
/// [`CliError`] if the directory exists, or if the files cannot be copied: then it is removed again.
pub fn create_snapshot(id: &SandboxId, to: &Path) -> CommandResult {
    let cannot = |e: std::io::Error| CliError::new(format!("cannot make {}: {e}", quote_path(to)));
    let lifecycle = open_lifecycle()?;
    let opened = exec::open_sandbox(&lifecycle, id)?;
    let made = fs::DirBuilder::new().mode(0o700).create(to).map_err(cannot);
    let copy_result = made.and_then(|()| {
        while_still(&lifecycle, &opened, || copy_trees(&opened.used, to)).inspect_err(|_| {
            // An incomplete snapshot is of no use.
            let _ = fs::remove_dir_all(to);
        })
    });
    lifecycle.leave_sandbox(opened)?;
    copy_result.map(|()| exit::SUCCESS)
}

/// Returns the path of the workspace in a snapshot.
pub fn locate_workspace(snapshot: &Path) -> PathBuf {
    snapshot.join(SNAPSHOT_TREES[0].1)
}

/// Copies the home of a snapshot to the home of a sandbox.
///
/// # Errors
/// [`CliError`] if it cannot be copied.
pub fn fill_home(used: &SandboxLease, snapshot: &Path, hidden: HiddenFiles) -> Result<(), CliError> {
    let (which, name) = SNAPSHOT_TREES[1];
    // The user named the snapshot, but a link in it may lead anywhere.
    let directory = locations::real_directory(snapshot, "the snapshot")?.join(name);
    if hidden.covers_path(&directory) {
        return Err(CliError::new(format!("{} is hidden from runs", quote_path(&directory))));
    }
    let from = FileTree::from_fd(plain_directory(&directory)?).with_withhold_rule(hidden.withhold_from(directory));
    let copied = open_files(used, which, |_| allow_all_guard())?.copy_from(&from, UNLIMITED_BOUNDS)?;
    print_remark(&text::left_out(&copied.left_out));
    Ok(())
}

/// Without a limit of its own, because the sandbox has quotas.
const UNLIMITED_BOUNDS: ContentLimits = ContentLimits { bytes: u64::MAX, entries: MAX_COPY_ENTRIES };

fn copy_trees(used: &SandboxLease, to: &Path) -> Result<(), CliError> {
    for (which, name) in SNAPSHOT_TREES {
        let to = to.join(name);
        let cannot = |e: std::io::Error| CliError::new(format!("cannot make {}: {e}", quote_path(&to)));
        fs::DirBuilder::new().mode(0o700).create(&to).map_err(cannot)?;
        FileTree::from_fd(host_directory(&to)?)
            .copy_from(&open_files(used, which, |_| allow_all_guard())?, UNLIMITED_BOUNDS)?;
    }
    Ok(())
}

/// Runs `act` with every process frozen. If the sandbox does not support this, prints a remark and
/// runs `act` anyway.
fn while_still(
    lifecycle: &Lifecycle,
    opened: &OpenSandbox,
    act: impl FnOnce() -> Result<(), CliError>,
) -> Result<(), CliError> {
    match lifecycle.pause_sandbox(opened) {
        Ok(()) => {
            let done = act();
            lifecycle.resume_sandbox(opened)?;
            done
        }
        Err(LifecycleError::Isolation(SandboxError::Unsupported { why, .. })) => {
            print_remark(&text::not_still(&why));
            act()
        }
        Err(error) => Err(error.into()),
    }
}
