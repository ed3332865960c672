//! What the stage tests share: a workspace, an overlay over it in a user
//! namespace of its own, and pictures of trees that can be compared.
#![allow(dead_code, clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stockade_model::{DEFAULT_PROTECTED_NAMES, RequestId, StageId};
use stockade_stage::{
    CommitRequest, CommitResult, NewStage, OpenStage, SilentObserver, StageCommitError, StageDirectory,
};

/// A directory with a workspace `w` and a place for stages.
pub struct Scene {
    pub root: PathBuf,
    workspace: PathBuf,
    scratch: Vec<tempfile::TempDir>,
}

impl Drop for Scene {
    /// An overlay's working directory is one that nobody may enter, and what
    /// cannot be entered is not removed.
    fn drop(&mut self) {
        // Another process's, which goes on with it.
        if self.scratch.is_empty() {
            return;
        }
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.root).stderr(Stdio::null()).status();
    }
}

impl Scene {
    /// An empty one; `before` is a script that fills the workspace.
    pub fn new(before: &str) -> Self {
        Self::over(before, None)
    }

    /// As [`new`](Self::new), with the workspace on another filesystem, so that
    /// a commit cannot give staged objects a second name.
    pub fn other_filesystem(before: &str) -> Self {
        Self::over(before, Some(Path::new("/dev/shm")))
    }

    /// With the workspace in `stage_path`, which must be another filesystem.
    pub fn over(before: &str, stage_path: Option<&Path>) -> Self {
        let made = || tempfile::Builder::new().prefix("stage-").tempdir();
        let scratch = made().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let mut all = vec![scratch];
        let workspace = match stage_path {
            None => root.join("w"),
            Some(stage_path) => {
                all.push(tempfile::Builder::new().prefix("stage-").tempdir_in(stage_path).unwrap());
                let outer = all[1].path().canonicalize().unwrap();
                assert_ne!(outer.metadata().unwrap().dev(), root.metadata().unwrap().dev(), "two filesystems");
                outer.join("w")
            }
        };
        let scene = Self { root, workspace, scratch: all };
        std::fs::create_dir(scene.workspace()).unwrap();
        scene.native(before);
        scene
    }

    /// One that another process made.
    pub fn at(root: &Path, workspace: &Path) -> Self {
        Self { root: root.to_owned(), workspace: workspace.to_owned(), scratch: Vec::new() }
    }

    pub fn workspace(&self) -> PathBuf {
        self.workspace.clone()
    }

    /// A place for a copy, on the filesystem of the workspace.
    pub fn beside(&self) -> PathBuf {
        self.workspace.with_file_name("native")
    }

    pub fn stages(&self) -> StageDirectory {
        StageDirectory::open(&self.root.join("stages")).unwrap()
    }

    /// Runs a script in the workspace itself.
    #[track_caller]
    pub fn native(&self, script: &str) {
        run_in(&self.workspace(), script);
    }

    /// A new stage, not yet written to.
    pub fn stage(&self) -> OpenStage {
        let new = NewStage {
            request: RequestId::from_random([7; 16]),
            command: "sh".into(),
            workspace: self.workspace(),
            protect: DEFAULT_PROTECTED_NAMES.iter().map(|name| (*name).to_owned()).collect(),
        };
        self.stages().create_stage(new).unwrap()
    }

    /// Runs a script in a stage of the workspace.
    #[track_caller]
    pub fn staged(&self, script: &str) -> StageId {
        let stage = self.stage();
        let output = self.in_overlay(&stage, Command::new("sh").args(["-euc", script]));
        assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
        stage.id().clone()
    }

    /// Runs a command with the overlay of `stage` as its directory.
    pub fn in_overlay(&self, stage: &OpenStage, command: &Command) -> Output {
        let stage_path = self.root.join("stages").join(stage.id().as_str());
        let view = self.root.join("view");
        std::fs::create_dir_all(&view).unwrap();
        let options = format!(
            "userxattr,lowerdir={},upperdir={},workdir={}",
            self.workspace().display(),
            stage_path.join("upper").display(),
            stage_path.join("work").display()
        );
        // Inside, an ordinary user has no more powers than outside.
        let powers = if rustix::process::geteuid().is_root() {
            ""
        } else {
            "setpriv --securebits +noroot,+noroot_locked --bounding-set -all --inh-caps -all"
        };
        let mount = format!("mount -t overlay overlay -o \"$0\" \"$1\" && cd \"$1\" && shift && exec {powers} \"$@\"");
        let mut line = Command::new("unshare");
        line.args(["-Ur", "-m", "sh", "-c", &mount]).arg(options).arg(&view);
        line.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            line.env(key, value.unwrap_or_default());
        }
        line.output().unwrap()
    }

    pub fn commit(&self, id: &StageId, commit_request: &CommitRequest) -> Result<CommitResult, StageCommitError> {
        self.stages().open_for_changes(id).unwrap().commit_changes(commit_request, &mut SilentObserver)
    }

    /// Commits everything.
    #[track_caller]
    pub fn commit_all(&self, id: &StageId) -> CommitResult {
        let committed = self.commit(id, &CommitRequest::default()).unwrap();
        assert!(committed.held.is_empty() && committed.is_gone, "{committed:?}");
        committed
    }

    pub fn picture(&self) -> Picture {
        picture(&self.workspace(), i64::MAX)
    }
}

/// Runs a script natively.
#[track_caller]
pub fn run_in(directory: &Path, script: &str) {
    let output = Command::new("sh").args(["-euc", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// An exact copy: times, holes, attributes, names of one file.
pub fn copy_tree(from: &Path, to: &Path) {
    let output = Command::new("cp").arg("-a").arg("--sparse=always").arg(from).arg(to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A tree, as far as anybody could tell it from another.
pub type Picture = BTreeMap<PathBuf, Seen>;

/// One object of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: u32,
    pub mode: u32,
    pub owner: (u32, u32),
    /// Of a file its bytes, of a link its text.
    pub content: Vec<u8>,
    /// Of files whose time was set to something old.
    pub modified: Option<(i64, i64)>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same file.
    pub same_as: PathBuf,
    /// Whether a file of more than a few blocks takes less room than its size.
    pub is_sparse: bool,
}

/// Times from `fresh` on (in seconds since the epoch) are not looked at: they
/// are those of the run itself.
pub fn picture(root: &Path, fresh: i64) -> Picture {
    let mut found = Picture::new();
    let mut names = HashMap::new();
    look(root, Path::new(""), fresh, &mut names, &mut found);
    found
}

fn look(root: &Path, path: &Path, fresh: i64, names: &mut HashMap<u64, PathBuf>, found: &mut Picture) {
    let full = if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) };
    let meta = full.symlink_metadata().unwrap();
    let same_as = names.entry(meta.ino()).or_insert_with(|| path.to_owned()).clone();
    let content = match meta.mode() & libc::S_IFMT {
        libc::S_IFREG if closed(&meta) => Vec::new(),
        libc::S_IFREG => std::fs::read(&full).unwrap(),
        libc::S_IFLNK => std::fs::read_link(&full).unwrap().into_os_string().into_vec(),
        _ => Vec::new(),
    };
    let is_link = meta.file_type().is_symlink();
    let seen = Seen {
        kind: meta.mode() & libc::S_IFMT,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        modified: (meta.mtime() < fresh && !is_link).then_some((meta.mtime(), meta.mtime_nsec())),
        attributes: if is_link { BTreeMap::new() } else { attributes(&full) },
        is_sparse: meta.is_file() && meta.blocks() * 512 + 65_536 < meta.len(),
        content,
        same_as,
    };
    found.insert(path.to_owned(), seen);
    if meta.is_dir() && !closed(&meta) {
        let mut inner: Vec<OsString> = full.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        inner.sort();
        for name in inner {
            look(root, &path.join(name), fresh, names, found);
        }
    }
}

/// What its owner may not even read is only compared from outside.
fn closed(meta: &std::fs::Metadata) -> bool {
    let needed = if meta.is_dir() { 0o500 } else { 0o400 };
    meta.mode() & needed != needed && !rustix::process::geteuid().is_root()
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or(0);
    let names =
        list[..length].split(|b| *b == 0).filter(|name| name.starts_with(b"user.") || name.starts_with(b"system."));
    names
        .map(|name| {
            let mut value = vec![0; 65_536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap_or(0);
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

/// Fails with the paths at which two trees differ.
#[track_caller]
pub fn assert_same(one: &Picture, other: &Picture, what: &str) {
    if one == other {
        return;
    }
    let mut text = String::new();
    let paths: std::collections::BTreeSet<&PathBuf> = one.keys().chain(other.keys()).collect();
    for path in paths.into_iter().filter(|path| one.get(*path) != other.get(*path)) {
        text += &format!("{}\n  {}\n  {}\n", path.display(), show(one.get(path)), show(other.get(path)));
    }
    panic!("{what}: trees differ\n{text}");
}

fn show(seen: Option<&Seen>) -> String {
    let Some(seen) = seen else { return "nothing".to_owned() };
    let short = Seen { content: seen.content.iter().take(60).copied().collect(), ..seen.clone() };
    format!("{short:?} ({} bytes)", seen.content.len())
}

/// The bytes of a path.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
