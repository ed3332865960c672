//! Which caches of a plan are layers, and how each is. Looks at the host's directories,
//! changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_model::{CacheSharing, Level, Plan, ToolCache};

/// Most directories beside the data of one cache that are shown as the host has them.
const MAX_SHOWN: usize = 32;

/// How the cache of one tool is had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The host's directory, at this path without links, beneath an overlay.
    Merged(MergedPlace),
    /// An empty directory, to which variables lead.
    Private,
    /// Its single files cannot be written, without a question: the tool goes on
    /// without them.
    ReadOnly(Vec<PathBuf>),
}

/// Where an overlay is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MergedPlace {
    pub directory: PathBuf,
    /// The permission bits of that directory.
    pub mode: u32,
    /// Directories in it that are no data, and shown as the host has them.
    pub shown: Vec<PathBuf>,
}

/// The way of each cache that is a layer. `overlays` tells whether there can be any.
pub(super) fn choose(plan: &Plan, overlays: bool) -> Vec<(&ToolCache, Way)> {
    let caches = plan.profile.filesystem.caches.iter();
    caches.filter_map(|cache| Some((cache, way(plan, cache, overlays)?))).collect()
}

fn way(plan: &Plan, cache: &ToolCache, overlays: bool) -> Option<Way> {
    if cache.moved_by.iter().any(|name| plan.environment.contains_key(name)) {
        return None;
    }
    let metadata = cache.directory.as_path().symlink_metadata().ok();
    let real = metadata.as_ref().map(|_| cache.directory.as_path().canonicalize());
    let real = real.transpose().ok()?;
    if let Some(real) = &real
        && is_of_the_plan(plan, cache, real)
    {
        return None;
    }
    let own = metadata.filter(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
    if let (Some(found), Some(real)) = (&own, &real)
        && overlays
        && plan.level == Level::Full
        && cache.sharing == CacheSharing::Merged
        && !hides_data(plan, cache, real)
    {
        let shown = if cache.data.is_empty() { Vec::new() } else { other_directories(cache, real)? };
        return Some(Way::Merged(MergedPlace { directory: real.clone(), mode: found.mode() & 0o777 | 0o700, shown }));
    }
    // Where settings lie beside the data, moving it would lose them.
    if !cache.set.is_empty() && (cache.data.is_empty() || real.is_none()) {
        return Some(Way::Private);
    }
    let real = real?;
    let files = cache.data.iter().filter(|name| !name.ends_with('/')).map(|name| real.join(name));
    let files: Vec<PathBuf> = files.collect();
    (!files.is_empty()).then_some(Way::ReadOnly(files))
}

/// Whether the plan itself speaks of the directory: it is, holds or lies in what the run
/// works in or may write.
fn is_of_the_plan(plan: &Plan, cache: &ToolCache, real: &Path) -> bool {
    let own = [&plan.workspace, &plan.cwd].into_iter().chain(&plan.profile.filesystem.write);
    own.map(stockade_model::RawText::as_path).any(|own| {
        let is_beside_data = || cache.data.iter().all(|name| !own.starts_with(real.join(name)));
        real.starts_with(own) || own.starts_with(real) && (cache.data.is_empty() || !is_beside_data())
    })
}

/// Whether something that is hidden is, holds or lies in the data.
fn hides_data(plan: &Plan, cache: &ToolCache, real: &Path) -> bool {
    let is_data = |path: &Path| {
        let within = |name: &String| path.starts_with(real.join(name));
        path.starts_with(real) && (cache.data.is_empty() || path == real || cache.data.iter().any(within))
    };
    let hidden = plan.profile.filesystem.hide.iter().map(stockade_model::RawText::as_path);
    hidden.into_iter().any(|hidden| real.starts_with(hidden) || is_data(hidden))
}

/// The directories beside the data; none at all where there are too many.
fn other_directories(cache: &ToolCache, real: &Path) -> Option<Vec<PathBuf>> {
    let is_data = |name: &str| cache.data.iter().any(|data| data.trim_end_matches('/') == name);
    let entries = real.read_dir().ok()?.flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let others = directories.filter(|entry| entry.file_name().to_str().is_none_or(|name| !is_data(name)));
    let others: Vec<PathBuf> = others.map(|entry| entry.path()).take(MAX_SHOWN + 1).collect();
    (others.len() <= MAX_SHOWN).then_some(others)
}
