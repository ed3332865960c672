//! Snapshots: copies of the files of a sandbox at one moment, and sandboxes that start with them.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stockade_engine::{SandboxError, Tree as Which};
use stockade_files::{Bounds, Tree};
use stockade_lifecycle::{HiddenFiles, Lifecycle, LifecycleError, Opened, files};
use stockade_model::SandboxId;
use stockade_store::sandboxes::Use;

use super::super::{Ended, remark};
use super::copy::{ENTRIES_MAX, host_directory, plain_directory};
use super::copy_rules::unguarded;
use super::{exec, lifecycle};
use crate::exit;
use crate::failure::{Failure, quoted};
use crate::places;
use crate::render::sandbox as text;

/// Trees of a snapshot, with their names in it.
const TREES: [(Which, &str); 2] = [(Which::Workspace, "workspace"), (Which::Home, "home")];

/// Copies the files of a sandbox to a new directory.
///
/// # Errors
/// [`Failure`] if the directory exists, or if the files cannot be copied: then it is removed again.
pub fn snapshot(id: &SandboxId, to: &Path) -> Ended {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot make {}: {e}", quoted(to)));
    let lifecycle = lifecycle()?;
    let opened = exec::open(&lifecycle, id)?;
    let made = fs::DirBuilder::new().mode(0o700).create(to).map_err(cannot);
    let kept = made.and_then(|()| {
        while_still(&lifecycle, &opened, || keep(&opened.used, to)).inspect_err(|_| {
            // An incomplete snapshot is of no use.
            let _ = fs::remove_dir_all(to);
        })
    });
    lifecycle.leave(opened)?;
    kept.map(|()| exit::SUCCESS)
}

/// Returns the path of the workspace in a snapshot.
pub fn workspace(snapshot: &Path) -> PathBuf {
    snapshot.join(TREES[0].1)
}

/// Copies the home of a snapshot to the home of a sandbox.
///
/// # Errors
/// [`Failure`] if it cannot be copied.
pub fn fill_home(used: &Use, snapshot: &Path, hidden: HiddenFiles) -> Result<(), Failure> {
    let (which, name) = TREES[1];
    // The user named the snapshot, but a link in it may lead anywhere.
    let directory = places::real_directory(snapshot, "the snapshot")?.join(name);
    if hidden.holds(&directory) {
        return Err(Failure::new(format!("{} is hidden from runs", quoted(&directory))));
    }
    let from = Tree::of(plain_directory(&directory)?).withholding(hidden.withhold_from(directory));
    let copied = files(used, which, |_| unguarded())?.copy_from(&from, BOUNDS)?;
    remark(&text::left_out(&copied.left_out));
    Ok(())
}

/// Without a limit of its own, because the sandbox has quotas.
const BOUNDS: Bounds = Bounds { bytes: u64::MAX, entries: ENTRIES_MAX };

fn keep(used: &Use, to: &Path) -> Result<(), Failure> {
    for (which, name) in TREES {
        let to = to.join(name);
        let cannot = |e: std::io::Error| Failure::new(format!("cannot make {}: {e}", quoted(&to)));
        fs::DirBuilder::new().mode(0o700).create(&to).map_err(cannot)?;
        Tree::of(host_directory(&to)?).copy_from(&files(used, which, |_| unguarded())?, BOUNDS)?;
    }
    Ok(())
}

/// Runs `act` with every process frozen. If the sandbox does not support this, prints a remark and
/// runs `act` anyway.
fn while_still(
    lifecycle: &Lifecycle,
    opened: &Opened,
    act: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    match lifecycle.pause(opened) {
        Ok(()) => {
            let done = act();
            lifecycle.resume(opened)?;
            done
        }
        Err(LifecycleError::Walls(SandboxError::Unsupported { why, .. })) => {
            remark(&text::not_still(&why));
            act()
        }
        Err(error) => Err(error.into()),
    }
}
