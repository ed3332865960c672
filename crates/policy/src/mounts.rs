//! Other paths of a file or directory: a bind mount or an overlay shows the same object under a second
//! path, so a rule about one path must cover the other.
//!
//! An object is a device and a path within its filesystem, as in `mountinfo`. The object has a path through
//! each mount whose root is at or above it. An overlay connects the paths beneath its mounts with those of
//! its layers, in both directions.
//!
//! Not found: copies that a FUSE filesystem shows, layers of an overlay that another process mounted under
//! paths with another meaning here, later mounts. Must not know which paths a profile hides.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use stockade_model::mountinfo::{
    MAX_TABLE_BYTES, MountInfoEntry, OWN_MOUNTINFO, parse_mounts, read_mountinfo, unescape_field,
};
use stockade_model::{NameList, RawText, shell_quoted};

use crate::trust::trace_path;

/// Most mounts that are examined.
pub const MAX_MOUNTS: usize = 10_000;

/// Most other paths that are returned for all paths of one call.
pub const MAX_OTHER_PATHS: usize = 4_096;

/// Most overlays on the way from one object to another: down through stacked overlays
/// (`FILESYSTEM_MAX_STACK_DEPTH` in linux/fs.h), and up the same way.
const MAX_OVERLAY_STEPS: usize = 4;

/// Filesystems in which only the kernel creates files. Second mounts of them are normal.
const KERNEL_FILESYSTEMS: NameList = NameList::new(include_str!("../knowledge/kernel_filesystems.txt"));

/// Reason why other paths cannot be found. No command runs then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountsError {
    /// The table cannot be read or parsed.
    #[error(
        "/proc/self/mountinfo cannot be read, so it is unknown which paths lead to hidden files: {why}\nhint: mount proc at /proc"
    )]
    Unreadable {
        /// The reason.
        why: String,
    },
    /// The root directory is not a mount point, as in a chroot.
    #[error(
        "/proc/self/mountinfo does not list the mount of the root directory, so it is unknown which paths lead to hidden files\nhint: make the new root a mount point before chroot: mount --bind DIRECTORY DIRECTORY"
    )]
    NoRoot,
    /// There are too many mounts.
    #[error(
        "/proc/self/mountinfo lists more than {MAX_MOUNTS} mounts, so it is unknown which paths lead to hidden files\nhint: unmount what is not needed, or use a mount namespace with fewer: unshare --mount"
    )]
    TooManyMounts,
    /// Too many paths lead to the same objects.
    #[error(
        "mounts give `{path}` and other paths more than {MAX_OTHER_PATHS} further paths\nhint: unmount second mounts of its filesystem: findmnt --target {}",
        shell_quoted(path)
    )]
    TooManyPaths {
        /// The path that exceeded the limit, escaped.
        path: String,
    },
}

/// A path that a mount gives to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPath {
    /// The path, absolute and without symbolic links.
    pub path: PathBuf,
    /// The path of the query.
    pub of: PathBuf,
}

/// The mounts of this process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountSnapshot {
    mounts: Vec<MountPoint>,
    /// The mounts at `/`: an absolute path begins in one of them. Another mount may cover the first one;
    /// `/..` leads to it.
    tops: Vec<usize>,
    /// Visible mounts by device, without the filesystems in which only the kernel creates files.
    by_device: HashMap<DeviceNumber, Vec<usize>>,
    overlays: Vec<OverlayMount>,
}

/// `major:minor`.
type DeviceNumber = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct MountPoint {
    device: DeviceNumber,
    root: PathBuf,
    point: PathBuf,
    /// Mounts on this one, by mount point.
    children: HashMap<PathBuf, usize>,
}

/// A file or directory, by its path within the filesystem of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DeviceObject {
    device: DeviceNumber,
    path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OverlayMount {
    device: DeviceNumber,
    layers: Vec<DeviceObject>,
    /// The final names of layers that were given by a relative path, whose base is unknown.
    relative: Vec<PathBuf>,
}

impl MountSnapshot {
    /// Reads the mounts of this process.
    ///
    /// # Errors
    /// See [`MountsError`].
    pub fn of_this_process() -> Result<Self, MountsError> {
        let read = File::open(OWN_MOUNTINFO).and_then(read_mountinfo);
        let text = read.map_err(|error| MountsError::Unreadable { why: error.to_string() })?;
        Self::parse(&text)
    }

    /// Parses a table in the format of `mountinfo`. Looks up the directories that overlays name.
    ///
    /// # Errors
    /// See [`MountsError`].
    pub fn parse(text: &[u8]) -> Result<Self, MountsError> {
        if text.len() as u64 >= MAX_TABLE_BYTES {
            return Err(MountsError::TooManyMounts);
        }
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        if lines > MAX_MOUNTS {
            return Err(MountsError::TooManyMounts);
        }
        let listed: Vec<MountInfoEntry<'_>> = parse_mounts(text).collect();
        if listed.len() != lines {
            return Err(MountsError::Unreadable {
                why: "a line is not in the format of proc_pid_mountinfo(5)".to_owned(),
            });
        }
        let tops = (0..listed.len()).filter(|&at| listed[at].point == Path::new("/")).collect();
        let mut table = Self { tops, ..Self::default() };
        if table.tops.is_empty() {
            let is_harmless = |mount: &MountInfoEntry<'_>| is_kernel_filesystem(mount.kind) || mount.kind == b"tmpfs";
            return if listed.iter().all(is_harmless) { Ok(table) } else { Err(MountsError::NoRoot) };
        }
        table.mounts = listed.iter().map(MountPoint::from_entry).collect();
        table.connect_mounts(&listed);
        table.add_overlays(&listed);
        Ok(table)
    }

    /// Connects each mount to its parent, and finds the visible mounts.
    fn connect_mounts(&mut self, listed: &[MountInfoEntry<'_>]) {
        let by_id: HashMap<u64, usize> = listed.iter().enumerate().map(|(at, mount)| (mount.id, at)).collect();
        let mut on: Vec<Vec<usize>> = vec![Vec::new(); listed.len()];
        for (at, mount) in listed.iter().enumerate().filter(|(at, _)| !self.tops.contains(at)) {
            let parents = by_id.get(&mount.parent).map_or_else(|| self.tops.clone(), |parent| vec![*parent]);
            for parent in parents {
                on[parent].push(at);
                self.mounts[parent].children.insert(mount.point.clone(), at);
            }
        }
        let mut is_visible = vec![false; listed.len()];
        let mut waiting = self.tops.clone();
        while let Some(at) = waiting.pop() {
            if !std::mem::replace(&mut is_visible[at], true) {
                waiting.extend(on[at].iter().filter(|&&child| !self.is_covered(at, child)));
            }
        }
        for (at, mount) in listed.iter().enumerate().filter(|(_, mount)| !is_kernel_filesystem(mount.kind)) {
            if is_visible[at] {
                self.by_device.entry(mount.device.to_owned()).or_default().push(at);
            }
        }
    }

    /// Returns whether another mount on `parent` covers the mount `child`.
    fn is_covered(&self, parent: usize, child: usize) -> bool {
        let MountPoint { point, children, .. } = &self.mounts[parent];
        let above = self.mounts[child].point.ancestors().skip(1);
        above.take_while(|ancestor| ancestor.starts_with(point)).any(|ancestor| children.contains_key(ancestor))
    }

    fn add_overlays(&mut self, listed: &[MountInfoEntry<'_>]) {
        let mut found: HashMap<Vec<u8>, Vec<DeviceObject>> = HashMap::new();
        let mut known = HashSet::new();
        for mount in listed.iter().filter(|mount| mount.kind == b"overlay" && known.insert(mount.device)) {
            let mut overlay =
                OverlayMount { device: mount.device.to_owned(), layers: Vec::new(), relative: Vec::new() };
            for layer in parse_overlay_layers(mount.filesystem_options) {
                let path = Path::new(OsStr::from_bytes(&layer));
                if path.is_absolute() {
                    let objects = found.entry(layer.clone()).or_insert_with(|| self.layer_objects(path));
                    overlay.layers.extend(objects.iter().cloned());
                } else {
                    overlay.relative.push(relative_end(path));
                }
            }
            if !overlay.layers.is_empty() || !overlay.relative.is_empty() {
                self.overlays.push(overlay);
            }
        }
    }

    /// Returns the directory of a layer. Empty if it does not exist: the overlay was mounted in another
    /// context, in which the path had another meaning.
    fn layer_objects(&self, path: &Path) -> Vec<DeviceObject> {
        let end = trace_path(path).end;
        let is_missing = end.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing { Vec::new() } else { self.objects_at(&end).collect() }
    }

    /// Returns whether no object has two paths.
    fn is_plain(&self) -> bool {
        self.overlays.is_empty() && self.by_device.values().all(|mounts| mounts.len() < 2)
    }

    /// Returns the other paths of absolute paths, and of mounts beneath them. A path need not exist.
    /// Symbolic links on the way are resolved first.
    ///
    /// # Errors
    /// [`MountsError::TooManyPaths`] if there are too many.
    pub fn other_paths<'p>(&self, paths: impl IntoIterator<Item = &'p Path>) -> Result<Vec<OtherPath>, MountsError> {
        let mut found: Vec<OtherPath> = Vec::new();
        if self.is_plain() {
            return Ok(found);
        }
        let (mut links, mut known) = (LinkResolver::default(), HashSet::new());
        for path in paths {
            let too_many = || MountsError::TooManyPaths { path: RawText::from(path).to_escaped() };
            let real = links.resolve_path(path);
            for other in self.paths_of(&real).ok_or_else(too_many)? {
                // A parent directory of the path is not another path of it, although a mount in the path
                // may show that directory.
                let is_unrelated = !other.starts_with(&real) && !real.starts_with(&other);
                if is_unrelated && known.insert(other.clone()) {
                    found.push(OtherPath { path: other, of: path.to_owned() });
                }
            }
            if found.len() > MAX_OTHER_PATHS {
                return Err(too_many());
            }
        }
        Ok(found)
    }

    /// Returns all paths of the object at `real`, which has no symbolic links; `None` if there are too many.
    fn paths_of(&self, real: &Path) -> Option<HashSet<PathBuf>> {
        let mut waiting: Vec<(DeviceObject, usize)> = self.objects_at(real).map(|object| (object, 0)).collect();
        for mount in self.by_device.values().flatten().map(|&at| &self.mounts[at]) {
            if mount.point != real && mount.point.starts_with(real) {
                waiting.push((DeviceObject { device: mount.device.clone(), path: mount.root.clone() }, 0));
            }
        }
        let (mut seen, mut paths) = (HashSet::new(), HashSet::new());
        while let Some((object, steps)) = waiting.pop() {
            if seen.contains(&object) {
                continue;
            }
            self.add_paths(&object, &mut paths);
            if steps < MAX_OVERLAY_STEPS {
                waiting.extend(self.across_overlays(&object).into_iter().map(|other| (other, steps + 1)));
            }
            seen.insert(object);
            if seen.len().max(paths.len()) > MAX_OTHER_PATHS {
                return None;
            }
        }
        Some(paths)
    }

    /// Adds the paths that mounts give to an object, and to parts of it.
    fn add_paths(&self, object: &DeviceObject, paths: &mut HashSet<PathBuf>) {
        for &at in self.by_device.get(&object.device).into_iter().flatten() {
            let mount = &self.mounts[at];
            if let Ok(rest) = object.path.strip_prefix(&mount.root) {
                let path = join_path(&mount.point, rest);
                if self.tops.iter().any(|&top| self.mount_at(top, &path) == at) {
                    paths.insert(path);
                }
            } else if mount.root.starts_with(&object.path) {
                paths.insert(mount.point.clone());
            }
        }
    }

    /// Returns the same object, or a part of it, in the overlays that have it in a layer. For an object of
    /// an overlay, also returns the objects in its layers.
    fn across_overlays(&self, object: &DeviceObject) -> Vec<DeviceObject> {
        let mut found = Vec::new();
        for OverlayMount { device, layers, relative } in &self.overlays {
            let in_overlay =
                |rest: &Path| DeviceObject { device: device.clone(), path: join_path(Path::new("/"), rest) };
            if *device == object.device {
                let rest = object.path.strip_prefix("/").unwrap_or(&object.path);
                found.extend(
                    layers.iter().map(|l| DeviceObject { device: l.device.clone(), path: join_path(&l.path, rest) }),
                );
                continue;
            }
            for layer in layers.iter().filter(|layer| layer.device == object.device) {
                if let Ok(rest) = object.path.strip_prefix(&layer.path) {
                    found.push(in_overlay(rest));
                } else if layer.path.starts_with(&object.path) {
                    found.push(in_overlay(Path::new("")));
                }
            }
            for end in relative {
                let above = object.path.ancestors().filter(|ancestor| ancestor.ends_with(end));
                found.extend(above.filter_map(|ancestor| object.path.strip_prefix(ancestor).ok()).map(in_overlay));
            }
        }
        found
    }

    /// Returns the objects at a path without symbolic links.
    fn objects_at<'t>(&'t self, path: &'t Path) -> impl Iterator<Item = DeviceObject> + 't {
        self.tops.iter().filter_map(move |&top| {
            let mount = &self.mounts[self.mount_at(top, path)];
            let rest = path.strip_prefix(&mount.point).ok()?;
            self.by_device.get(&mount.device)?;
            Some(DeviceObject { device: mount.device.clone(), path: join_path(&mount.root, rest) })
        })
    }

    /// Returns the mount that contains a path, as the kernel finds it (path_resolution(7)): at each name,
    /// the mount on it, and the mount on that.
    fn mount_at(&self, top: usize, path: &Path) -> usize {
        let mut at = top;
        // Each mount is passed at most once.
        for _ in &self.mounts {
            let MountPoint { point, children, .. } = &self.mounts[at];
            let path_parents = path.ancestors().take_while(|ancestor| ancestor.starts_with(point));
            let Some(&next) = path_parents.filter_map(|ancestor| children.get(ancestor)).last() else { break };
            at = next;
        }
        at
    }
}

impl MountPoint {
    fn from_entry(mount: &MountInfoEntry<'_>) -> Self {
        let MountInfoEntry { device, root, point, .. } = mount;
        Self { device: (*device).to_owned(), root: root.clone(), point: point.clone(), children: HashMap::new() }
    }
}

/// Cache of resolved parent directories, because many paths have the same parent.
#[derive(Default)]
struct LinkResolver(HashMap<PathBuf, PathBuf>);

impl LinkResolver {
    fn resolve_path(&mut self, path: &Path) -> PathBuf {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return trace_path(path).end };
        if path.read_link().is_ok() {
            return trace_path(path).end;
        }
        if !self.0.contains_key(parent) {
            self.0.insert(parent.to_owned(), trace_path(parent).end);
        }
        self.0.get(parent).map_or_else(|| path.to_owned(), |real| real.join(name))
    }
}

fn is_kernel_filesystem(kind: &[u8]) -> bool {
    KERNEL_FILESYSTEMS.names().any(|name| name.as_bytes() == kind)
}

/// Like [`Path::join`], without a final slash if `rest` is empty.
fn join_path(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_owned() } else { base.join(rest) }
}

/// Returns the directories in the options of an overlay (`Documentation/filesystems/overlayfs.rst`).
fn parse_overlay_layers(options: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let Some(split) = option.iter().position(|byte| *byte == b'=') else { continue };
        let (key, value) = (&option[..split], unescape_field(&option[split + 1..]));
        match key {
            b"lowerdir" => found.extend(colon_separated(&value)),
            // The kernel version decides if a backslash is an escape here.
            b"upperdir" | b"lowerdir+" | b"datadir+" => {
                found.push(without_escapes(&value));
                found.push(value);
            }
            _ => {}
        }
    }
    found.retain(|layer| !layer.is_empty());
    found.dedup();
    found
}

/// Splits at colons that no backslash escapes.
fn colon_separated(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut is_escaped) = (vec![Vec::new()], false);
    for &byte in text {
        if byte == b':' && !is_escaped {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(byte);
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    parts.iter().map(|part| without_escapes(part)).collect()
}

/// Removes each backslash that escapes the next byte.
fn without_escapes(text: &[u8]) -> Vec<u8> {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.iter());
    while let Some(&byte) = bytes.next() {
        let escaped = (byte == b'\\').then(|| bytes.next()).flatten();
        out.push(escaped.copied().unwrap_or(byte));
    }
    out
}

/// Returns the names after the last `..` of a relative path.
fn relative_end(path: &Path) -> PathBuf {
    let mut end = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => end.push(name),
            Component::ParentDir => end.clear(),
            _ => {}
        }
    }
    end
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
