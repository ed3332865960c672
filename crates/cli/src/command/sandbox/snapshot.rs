//! What a sandbox keeps, kept once more: its files as they are at one moment, and
//! sandboxes that begin with them.

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

/// The trees of a snapshot, by their names there.
const TREES: [(Which, &str); 2] = [(Which::Workspace, "workspace"), (Which::Home, "home")];

/// Keeps the files of one in a directory that is made for that.
///
/// # Errors
/// When it is there already, or they cannot be copied: it is removed again then.
pub fn snapshot(id: &SandboxId, to: &Path) -> Ended {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot make {}: {e}", quoted(to)));
    let lifecycle = lifecycle()?;
    let opened = exec::open(&lifecycle, id)?;
    let made = fs::DirBuilder::new().mode(0o700).create(to).map_err(cannot);
    let kept = made.and_then(|()| {
        while_still(&lifecycle, &opened, || keep(&opened.used, to)).inspect_err(|_| {
            // What is left of it is a part of nothing.
            let _ = fs::remove_dir_all(to);
        })
    });
    lifecycle.leave(opened)?;
    kept.map(|()| exit::SUCCESS)
}

/// Where a snapshot has its workspace.
pub fn workspace(snapshot: &Path) -> PathBuf {
    snapshot.join(TREES[0].1)
}

/// Fills a home with that of a snapshot.
///
/// # Errors
/// When it cannot be copied.
pub fn fill_home(used: &Use, snapshot: &Path, hidden: HiddenFiles) -> Result<(), Failure> {
    let (which, name) = TREES[1];
    // The person named the snapshot. A link in it may lead anywhere.
    let directory = places::real_directory(snapshot, "the snapshot")?.join(name);
    if hidden.holds(&directory) {
        return Err(Failure::new(format!("{} is hidden from runs", quoted(&directory))));
    }
    let from = Tree::of(plain_directory(&directory)?).withholding(hidden.withhold_from(directory));
    let copied = files(used, which, |_| unguarded())?.copy_from(&from, BOUNDS)?;
    remark(&text::left_out(&copied.left_out));
    Ok(())
}

/// As much as there is: quotas hold inside.
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

/// With every process stopped, where that can be had; else it is said.
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
