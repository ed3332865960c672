//! Selects the caches of a plan that become layers, and the mode of each. Reads the host's
//! directories, changes nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, lstat, openat2};
use rustix::process::geteuid;
use stockade_backend_api::ServedMounts;
use stockade_backend_api::identity::files_named;
use stockade_files::object::{list_entries, to_os_str};
use stockade_model::mountinfo;
use stockade_model::{AttemptPlan, CacheSharing, IsolationLevel, RawText, ToolCache};

use stockade_permissions::powers::is_at_or_beneath;

/// Most directories beside a cache's data that are shown with the host's content.
const MAX_SHOWN_DIRECTORIES: usize = 32;

/// Mode of one tool's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CacheMode {
    /// An overlay over the host's directory, at this path without links.
    Merged(MergedCache),
    /// An empty directory, named by environment variables.
    Private,
    /// The cache's single files are read-only and a write raises no question: the tool continues
    /// without them.
    ReadOnly(Vec<PathBuf>),
}

/// Location of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MergedCache {
    pub directory: PathBuf,
    /// Device and inode of the directory.
    pub identity: (u64, u64),
    /// Permission bits of the directory.
    pub mode: u32,
    /// Directories in it that are not data; they show the host's content.
    pub shown: Vec<PathBuf>,
    /// Hidden paths in it, with their devices and inodes.
    pub hidden: Vec<(PathBuf, (u64, u64))>,
}

/// Returns each cache that becomes a layer, with its mode. `overlays` is false if overlays are
/// unavailable. `hidden` has the plan's hidden paths that exist, without links.
pub(super) fn choose_modes<'p>(
    plan: &'p AttemptPlan,
    overlays: bool,
    hidden: &[PathBuf],
) -> Vec<(&'p ToolCache, CacheMode)> {
    let mounted = File::open(mountinfo::OWN_MOUNTINFO).and_then(mountinfo::read_mountinfo).unwrap_or_default();
    let (words, cwd) = (plan.argv.iter().map(RawText::as_bytes), plan.cwd.as_path());
    let context = CacheContext {
        files: files_named(words, cwd, &ServedMounts::parse_mountinfo(&mounted, cwd)),
        mounts: mountinfo::parse_mount_points(&mounted).map(|(point, _)| point).collect(),
        hidden: HiddenPaths::from_plan(plan, hidden),
        plan,
        user: geteuid().as_raw(),
    };
    // If no mounts are known, not even `/`, the content of an overlay is unknown.
    let overlays = overlays && !context.mounts.is_empty();
    let caches = plan.profile.filesystem.caches.iter();
    caches.filter_map(|cache| Some((cache, context.mode_of(cache, overlays)?))).collect()
}

/// Inputs of the decision.
struct CacheContext<'p> {
    plan: &'p AttemptPlan,
    /// Files that words of the command name.
    files: BTreeSet<PathBuf>,
    /// Mount points. Those in a cache would be missing in its overlay.
    mounts: Vec<PathBuf>,
    hidden: HiddenPaths<'p>,
    /// The owner of the caches.
    user: u32,
}

impl CacheContext<'_> {
    fn mode_of(&self, cache: &ToolCache, overlays: bool) -> Option<CacheMode> {
        if cache.moved_by.iter().any(|name| self.plan.environment.contains_key(name)) {
            return None;
        }
        let found = CacheDirectory::at_path(cache.directory.as_path(), self.user).ok()?;
        let real = found.as_ref().map(|found| found.real.as_path());
        if real.is_some_and(|real| is_of_the_plan((self.plan, &self.files), cache, real)) {
            return None;
        }
        if let Some(CacheDirectory { real, own: Some((fd, stat)) }) = &found
            && overlays
            && self.plan.level == IsolationLevel::Full
            && cache.sharing == CacheSharing::Merged
            && !self.hidden.has_data(cache, real)
            && !self.mounts.iter().any(|point| point != real && point.starts_with(real))
        {
            let shown = if cache.data.is_empty() { Vec::new() } else { other_directories(cache, (real, fd))? };
            let (identity, mode) = ((stat.st_dev, stat.st_ino), stat.st_mode & 0o777 | 0o700);
            let hidden = self.hidden.objects_below(real);
            return Some(CacheMode::Merged(MergedCache { directory: real.clone(), identity, mode, shown, hidden }));
        }
        // If settings are beside the data, another directory would lose them.
        if !cache.set.is_empty() && (cache.data.is_empty() || real.is_none()) {
            return Some(CacheMode::Private);
        }
        let real = real?;
        let files = cache.data.iter().filter(|name| !name.ends_with('/')).map(|name| real.join(name));
        let files: Vec<PathBuf> = files.collect();
        (!files.is_empty()).then_some(CacheMode::ReadOnly(files))
    }
}

/// Returns whether the plan itself uses the directory: it equals, contains or is in the workspace,
/// the working directory or a writable path.
fn is_of_the_plan((plan, files): (&AttemptPlan, &BTreeSet<PathBuf>), cache: &ToolCache, real: &Path) -> bool {
    // A script that the user approved is the host's file.
    if files.iter().any(|file| is_data(cache, real, file)) {
        return true;
    }
    let own = [&plan.workspace, &plan.cwd].into_iter().chain(&plan.profile.filesystem.write);
    own.map(RawText::as_path).any(|own| {
        let is_beside_data = || cache.data.iter().all(|name| !own.starts_with(real.join(name)));
        real.starts_with(own) || own.starts_with(real) && (cache.data.is_empty() || !is_beside_data())
    })
}

/// Hidden paths of the plan.
struct HiddenPaths<'p> {
    /// All of them, without empty components and `.`, so that their bytes show containment.
    all: Vec<PathBuf>,
    /// The existing hidden paths, without links.
    there: &'p [PathBuf],
}

impl<'p> HiddenPaths<'p> {
    fn from_plan(plan: &'p AttemptPlan, there: &'p [PathBuf]) -> Self {
        let all = plan.profile.filesystem.hide.iter().map(|path| path.as_path().components().collect());
        Self { all: all.collect(), there }
    }

    /// Returns whether a hidden path equals, contains or is in the data of a cache.
    fn has_data(&self, cache: &ToolCache, real: &Path) -> bool {
        // Comparing hundreds of paths by components would take longer than everything else here.
        let is_within =
            |tree: &Path, path: &Path| is_at_or_beneath(tree.as_os_str().as_bytes(), path.as_os_str().as_bytes());
        let is_in_data = |hidden: &Path| is_within(real, hidden) && is_data(cache, real, hidden);
        self.all.iter().any(|hidden| is_within(hidden, real) || is_in_data(hidden))
    }

    /// Returns the existing hidden paths in `tree`, and the directories above each, with their
    /// devices and inodes: one directory may have replaced another.
    fn objects_below(&self, tree: &Path) -> Vec<(PathBuf, (u64, u64))> {
        let within = self.there.iter().filter(|hidden| hidden.starts_with(tree));
        let parents = within.flat_map(|hidden| hidden.ancestors().take_while(|path| *path != tree));
        let object = |path: &Path| lstat(path).map(|stat| (path.to_owned(), (stat.st_dev, stat.st_ino))).ok();
        parents.filter_map(object).collect()
    }
}

/// Returns whether `path` equals or is in the data of the directory `real`.
fn is_data(cache: &ToolCache, real: &Path, path: &Path) -> bool {
    let within = |name: &String| path.starts_with(real.join(name));
    path.starts_with(real) && (cache.data.is_empty() || cache.data.iter().any(within))
}

/// Returns the directories beside the data, or `None` if there are too many.
fn other_directories(cache: &ToolCache, (real, own): (&Path, &OwnedFd)) -> Option<Vec<PathBuf>> {
    let within = list_entries(own.as_fd()).ok()?.into_iter().filter(|(_, kind)| kind.is_dir());
    let is_data = |name: &[u8]| cache.data.iter().any(|data| data.trim_end_matches('/').as_bytes() == name);
    let others = within.filter(|(name, _)| !is_data(name)).map(|(name, _)| real.join(to_os_str(&name)));
    let others: Vec<PathBuf> = others.take(MAX_SHOWN_DIRECTORIES + 1).collect();
    (others.len() <= MAX_SHOWN_DIRECTORIES).then_some(others)
}

/// The host's file at the path of a cache.
struct CacheDirectory {
    /// The path without links.
    real: PathBuf,
    /// The directory, if it belongs to this user and the path is no link.
    own: Option<(OwnedFd, Stat)>,
}

impl CacheDirectory {
    /// Returns `None` if nothing is there.
    fn at_path(path: &Path, user: u32) -> std::io::Result<Option<Self>> {
        let Ok(stat) = lstat(path) else { return Ok(None) };
        let real = path.canonicalize()?;
        let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || openat2(CWD, &real, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok();
        let fd = if is_link { None } else { open() };
        let own = fd.map(|fd| fstat(&fd).map(|stat| (fd, stat))).transpose()?;
        Ok(Some(Self { real, own: own.filter(|(_, stat)| stat.st_uid == user) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;

    use stockade_launch::hidden_there;
    use stockade_model::{
        EnvironmentRules, ExecRules, FilesystemAccess, Limits, NetworkAccess, Profile, RawText, RequestId,
    };

    struct CachePath {
        home: tempfile::TempDir,
        plan: AttemptPlan,
    }

    impl CachePath {
        /// Creates a home with a cache `tool` that is all data, and `rich` with settings beside the data.
        fn new(level: IsolationLevel) -> Self {
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
            let plan = AttemptPlan {
                request: RequestId::from_random([1; 16]),
                attempt: 1,
                argv: vec![RawText::from("true")],
                environment: BTreeMap::new(),
                cwd: at("work"),
                workspace: at("work"),
                profile: Profile {
                    name: "test".to_owned(),
                    sandboxed: true,
                    filesystem: FilesystemAccess { write: vec![at("work")], caches, ..FilesystemAccess::default() },
                    exec: ExecRules::default(),
                    network: NetworkAccess::None,
                    egress: Default::default(),
                    environment: EnvironmentRules::default(),
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
            let found =
                choose_modes(&self.plan, true, &hidden_there(&self.plan)).into_iter().map(|(cache, cache_mode)| {
                    let cache_mode = match cache_mode {
                        CacheMode::Merged(cache_path) => format!("merged, {} shown", cache_path.shown.len()),
                        CacheMode::Private => "private".to_owned(),
                        CacheMode::ReadOnly(files) => format!("{} read-only", files.len()),
                    };
                    format!("{}: {cache_mode}", cache.tool)
                });
            assert_eq!(found.collect::<Vec<_>>().join("; "), expected);
        }
    }

    #[test]
    fn the_level_decides_and_settings_are_not_moved() {
        CachePath::new(IsolationLevel::Full).check("tool: merged, 0 shown; rich: merged, 1 shown");
        CachePath::new(IsolationLevel::Restricted).check("tool: private; rich: 1 read-only");
        let context = CachePath::new(IsolationLevel::Full);
        fs::remove_dir_all(context.at("rich").as_path()).unwrap();
        fs::remove_dir_all(context.at("tool").as_path()).unwrap();
        context.check("tool: private; rich: private");
        std::os::unix::fs::symlink("/etc", context.at("tool").as_path()).unwrap();
        context.check("tool: private; rich: private");
    }

    #[test]
    fn paths_of_the_plan_or_the_caller_are_left_alone() {
        let mut context = CachePath::new(IsolationLevel::Full);
        context.plan.environment.insert("tool_dir".to_owned(), RawText::from("/x"));
        context.check("rich: merged, 1 shown");
        for (write, expected) in [
            ("", ""),
            ("tool/part", "rich: merged, 1 shown"),
            ("rich", "tool: merged, 0 shown"),
            ("rich/store/x", "tool: merged, 0 shown"),
            ("rich/bin", "tool: merged, 0 shown; rich: merged, 1 shown"),
        ] {
            let mut context = CachePath::new(IsolationLevel::Full);
            let path = context.home.path().canonicalize().unwrap().join(write);
            context.plan.profile.filesystem.write.push(path.components().collect::<PathBuf>().into());
            context.check(expected);
        }
        let mut context = CachePath::new(IsolationLevel::Full);
        context.plan.argv = vec![context.at("rich/bin/x"), context.at("tool/script"), context.at("tool/part")];
        context.check("tool: merged, 0 shown; rich: merged, 1 shown");
        fs::write(context.at("tool/script").as_path(), "").unwrap();
        std::os::unix::fs::symlink("../tool/script", context.at("work/link").as_path()).unwrap();
        let script = context.at("tool/script");
        let script = script.as_path().display();
        for word in [
            &format!("{script}"),
            "../tool/script",
            "link",
            "-f../tool/script",
            &format!("--file={script}"),
            "@../tool/script",
            "x=y=link",
            "-cp:link",
            "a:../tool/script:b",
        ] {
            context.plan.argv = vec![RawText::from("make"), RawText::from(word)];
            context.check("rich: merged, 1 shown");
        }
    }

    #[test]
    fn hidden_data_is_never_merged() {
        for (hidden, expected) in [
            ("rich/token", "tool: merged, 0 shown; rich: merged, 1 shown"),
            ("rich/store/token", "tool: merged, 0 shown; rich: 1 read-only"),
            ("tool/token", "tool: private; rich: merged, 1 shown"),
            ("tool", "tool: private; rich: merged, 1 shown"),
            ("", "tool: private; rich: 1 read-only"),
            ("rich//store/./token", "tool: merged, 0 shown; rich: 1 read-only"),
            ("tool/", "tool: private; rich: merged, 1 shown"),
            ("tool-2/token", "tool: merged, 0 shown; rich: merged, 1 shown"),
        ] {
            let mut context = CachePath::new(IsolationLevel::Full);
            let among = ["tool!", "tool.", "rich/bin", "rich/store-2"].map(|name| context.at(name));
            context.plan.profile.filesystem.hide = among.into_iter().chain([context.at(hidden)]).collect();
            context.check(expected);
        }
    }

    #[test]
    fn targets_of_links_are_not_merged_by_their_names() {
        let context = CachePath::new(IsolationLevel::Full);
        let tool = context.at("tool");
        fs::rename(tool.as_path(), context.at("elsewhere").as_path()).unwrap();
        std::os::unix::fs::symlink("elsewhere", tool.as_path()).unwrap();
        context.check("tool: private; rich: merged, 1 shown");
    }
}
