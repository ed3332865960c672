//! Which caches of a plan are layers, and how each is. Looks at the host's directories,
//! changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_model::{CacheSharing, Level, Plan, ToolCache};

/// Most directories beside the data of one cache that are shown as the host has them.
const MAX_SHOWN: usize = 32;

/// Entries of a directory that are looked at for mounts.
const MAX_LOOKED_AT: usize = 16;

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
        && !has_mounts(cache, real, found.dev())
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
    // A script that was agreed to is the host's.
    if plan.argv.iter().any(|word| is_data(cache, real, word.as_path())) {
        return true;
    }
    let own = [&plan.workspace, &plan.cwd].into_iter().chain(&plan.profile.filesystem.write);
    own.map(stockade_model::RawText::as_path).any(|own| {
        let is_beside_data = || cache.data.iter().all(|name| !own.starts_with(real.join(name)));
        real.starts_with(own) || own.starts_with(real) && (cache.data.is_empty() || !is_beside_data())
    })
}

/// Whether something that is hidden is, holds or lies in the data.
fn hides_data(plan: &Plan, cache: &ToolCache, real: &Path) -> bool {
    let hidden = plan.profile.filesystem.hide.iter().map(stockade_model::RawText::as_path);
    hidden.into_iter().any(|hidden| real.starts_with(hidden) || is_data(cache, real, hidden))
}

/// Whether `path` is, or lies in, what of the directory `real` is data.
fn is_data(cache: &ToolCache, real: &Path, path: &Path) -> bool {
    let within = |name: &String| path.starts_with(real.join(name));
    path.starts_with(real) && (cache.data.is_empty() || cache.data.iter().any(within))
}

/// Whether another filesystem lies in the data, which an overlay would not show. Of what is
/// all data the first entries are looked at: deeper, nobody mounts anything.
fn has_mounts(cache: &ToolCache, real: &Path, device: u64) -> bool {
    let is_other = |path: PathBuf| path.symlink_metadata().is_ok_and(|found| found.dev() != device);
    if !cache.data.is_empty() {
        return cache.data.iter().any(|name| is_other(real.join(name)));
    }
    let entries = real.read_dir().into_iter().flatten().flatten();
    entries.take(MAX_LOOKED_AT).any(|entry| is_other(entry.path()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;

    use stockade_model::{Environment, ExecRules, Filesystem, Limits, Network, Profile, RawText, RequestId};

    struct Scene {
        home: tempfile::TempDir,
        plan: Plan,
    }

    impl Scene {
        /// A home with a cache `tool` of which all is data, and `rich` with settings beside.
        fn new(level: Level) -> Self {
            let home = tempfile::tempdir().unwrap();
            let at = |name: &str| RawText::from(home.path().canonicalize().unwrap().join(name));
            for directory in ["tool/part", "rich/store", "rich/bin", "work"] {
                fs::create_dir_all(at(directory).as_path()).unwrap();
            }
            let cache = |tool: &str, data: &[&str]| ToolCache {
                tool: tool.to_owned(),
                directory: at(tool),
                data: data.iter().map(|name| (*name).to_owned()).collect(),
                sharing: CacheSharing::Merged,
                moved_by: vec![format!("{tool}_dir")],
                set: BTreeMap::from([(format!("{tool}_dir"), "{}".to_owned())]),
            };
            let caches = vec![cache("tool", &[]), cache("rich", &["store/", ".lock"])];
            let plan = Plan {
                request: RequestId::from_random([1; 16]),
                attempt: 1,
                argv: vec![RawText::from("true")],
                environment: BTreeMap::new(),
                cwd: at("work"),
                workspace: at("work"),
                profile: Profile {
                    name: "test".to_owned(),
                    sandboxed: true,
                    filesystem: Filesystem { write: vec![at("work")], caches, ..Filesystem::default() },
                    exec: ExecRules::default(),
                    network: Network::None,
                    egress: Default::default(),
                    environment: Environment::default(),
                    limits: Limits::default(),
                },
                grants: Vec::new(),
                effects: Vec::new(),
                level,
                backend: "native".to_owned(),
            };
            Self { home, plan }
        }

        fn at(&self, name: &str) -> RawText {
            RawText::from(self.home.path().canonicalize().unwrap().join(name))
        }

        #[track_caller]
        fn check(&self, expected: &str) {
            let found = choose(&self.plan, true).into_iter().map(|(cache, way)| {
                let way = match way {
                    Way::Merged(place) => format!("merged, {} shown", place.shown.len()),
                    Way::Private => "private".to_owned(),
                    Way::ReadOnly(files) => format!("{} read-only", files.len()),
                };
                format!("{}: {way}", cache.tool)
            });
            assert_eq!(found.collect::<Vec<_>>().join("; "), expected);
        }
    }

    #[test]
    fn the_level_decides_and_settings_are_not_moved() {
        Scene::new(Level::Full).check("tool: merged, 0 shown; rich: merged, 1 shown");
        Scene::new(Level::Restricted).check("tool: private; rich: 1 read-only");
        let scene = Scene::new(Level::Full);
        fs::remove_dir_all(scene.at("rich").as_path()).unwrap();
        fs::remove_dir_all(scene.at("tool").as_path()).unwrap();
        scene.check("tool: private; rich: private");
        std::os::unix::fs::symlink("/etc", scene.at("tool").as_path()).unwrap();
        scene.check("tool: private; rich: private");
    }

    #[test]
    fn what_the_plan_or_the_caller_speaks_of_is_left_alone() {
        let mut scene = Scene::new(Level::Full);
        scene.plan.environment.insert("tool_dir".to_owned(), RawText::from("/x"));
        scene.check("rich: merged, 1 shown");
        for (write, expected) in [
            ("", ""),
            ("tool/part", "rich: merged, 1 shown"),
            ("rich", "tool: merged, 0 shown"),
            ("rich/store/x", "tool: merged, 0 shown"),
            ("rich/bin", "tool: merged, 0 shown; rich: merged, 1 shown"),
        ] {
            let mut scene = Scene::new(Level::Full);
            let path = scene.home.path().canonicalize().unwrap().join(write);
            scene.plan.profile.filesystem.write.push(path.components().collect::<PathBuf>().into());
            scene.check(expected);
        }
        let mut scene = Scene::new(Level::Full);
        scene.plan.argv = vec![scene.at("rich/bin/x"), scene.at("tool/script")];
        scene.check("rich: merged, 1 shown");
    }

    #[test]
    fn what_is_hidden_in_the_data_is_never_merged() {
        for (hidden, expected) in [
            ("rich/token", "tool: merged, 0 shown; rich: merged, 1 shown"),
            ("rich/store/token", "tool: merged, 0 shown; rich: 1 read-only"),
            ("tool/token", "tool: private; rich: merged, 1 shown"),
            ("tool", "tool: private; rich: merged, 1 shown"),
        ] {
            let mut scene = Scene::new(Level::Full);
            scene.plan.profile.filesystem.hide = vec![scene.at(hidden)];
            scene.check(expected);
        }
    }
}
