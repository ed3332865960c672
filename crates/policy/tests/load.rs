//! Reading files: what is there and cannot be used stops everything (L6), and a
//! stranger's file is not followed anywhere.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use stockade_model::{ApprovalMode, Level};
use stockade_policy::load::{LoadError, Sources, load};
use stockade_policy::{Settings, resolve_profile};
use tempfile::TempDir;

struct World {
    top: TempDir,
    sources: Sources,
}

impl World {
    fn new() -> Self {
        let top = TempDir::new().unwrap();
        let at = |name: &str| top.path().join(name);
        for directory in ["etc", "home", "config/stockade", "state", "ws"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let mut sources = Sources::standard(&at("home"), Some(&at("config")), Some(&at("state")), Some(&at("ws")));
        sources.system_file = at("etc/config.toml");
        sources.managed_file = at("etc/managed.toml");
        Self { top, sources }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.top.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn load(&self) -> Result<Settings, LoadError> {
        load(&self.sources)
    }

    #[track_caller]
    fn refused(&self, expected: &str) {
        let text = self.load().unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("\nhint: "), "{text}");
    }
}

#[test]
fn nothing_there_is_the_default() {
    let settings = World::new().load().unwrap();
    assert_eq!((settings.profile.value.as_str(), settings.level.value), ("workspace", Level::Full));
}

#[test]
fn all_layers_are_read() {
    let world = World::new();
    world.write("etc/config.toml", "level = \"restricted\"");
    world.write("config/stockade/config.toml", "approval_mode = \"on-request\"");
    world.write("ws/.stockade/config.toml", "approval_mode = \"never\"");
    let settings = world.load().unwrap();
    assert_eq!((settings.level.value, settings.approval_mode.value), (Level::Restricted, ApprovalMode::Never));
}

#[test]
fn broken_files_stop_everything() {
    for file in ["etc/config.toml", "config/stockade/config.toml", "ws/.stockade.toml", "ws/.stockade/config.toml"] {
        let world = World::new();
        world.write(file, "profil = 1");
        world.refused(&format!("{file}:1:1: unknown key `profil`"));
        fs::write(world.top.path().join(file), b"# \xff").unwrap();
        world.refused("not UTF-8");
        fs::write(world.top.path().join(file), vec![b'#'; 256 * 1024 + 1]).unwrap();
        world.refused("larger than 256 KiB");
        fs::write(world.top.path().join(file), vec![b'#'; 256 * 1024]).unwrap();
        world.load().unwrap();
    }
}

#[test]
fn a_project_file_is_a_plain_file_in_the_workspace() {
    let world = World::new();
    let ws = world.top.path().join("ws");
    world.write("elsewhere/config.toml", "");
    symlink("../elsewhere/config.toml", ws.join(".stockade.toml")).unwrap();
    world.refused("symbolic link");
    fs::remove_file(ws.join(".stockade.toml")).unwrap();
    symlink("nowhere", ws.join(".stockade.toml")).unwrap();
    world.refused("symbolic link");
    fs::remove_file(ws.join(".stockade.toml")).unwrap();
    symlink("../elsewhere", ws.join(".stockade")).unwrap();
    world.refused("symbolic link");
    fs::remove_file(ws.join(".stockade")).unwrap();
    fs::create_dir(ws.join(".stockade.toml")).unwrap();
    world.refused("no regular file");
    fs::remove_dir(ws.join(".stockade.toml")).unwrap();
    let fifo = ws.join(".stockade.toml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600), 0).unwrap();
    world.refused("no regular file");
    fs::remove_file(&fifo).unwrap();
    world.write("ws/.stockade.toml", "");
    world.write("ws/.stockade/config.toml", "");
    world.refused("both");
}

#[test]
fn the_persons_file_may_be_a_link_but_not_everybodys() {
    let world = World::new();
    world.write("dotfiles/config.toml", "approval_mode = \"never\"");
    let user = world.top.path().join("config/stockade/config.toml");
    symlink("../../dotfiles/config.toml", &user).unwrap();
    assert_eq!(world.load().unwrap().approval_mode.value, ApprovalMode::Never);
    fs::set_permissions(&user, fs::Permissions::from_mode(0o666)).unwrap();
    world.refused("everybody may write");
}

#[test]
fn own_directories_are_known_under_every_name() {
    let world = World::new();
    let top = world.top.path().canonicalize().unwrap();
    symlink(top.join("real"), top.join("linked")).unwrap();
    fs::create_dir(top.join("real")).unwrap();
    let mut sources = world.sources.clone();
    sources.state_directory = top.join("linked/not/yet");
    let settings = load(&sources).unwrap();
    for (workspace, fits) in [("real", false), ("real/not", false), ("linked/not/yet", false), ("ws", true)] {
        let resolved = resolve_profile(&settings, "workspace", &top.join(workspace), &[]);
        assert_eq!(resolved.is_ok(), fits, "{workspace}: {:?}", resolved.err());
    }
}

#[test]
fn relative_variables_are_ignored() {
    let sources = Sources::standard(Path::new("/home/u"), Some(Path::new("x")), None, None);
    assert_eq!(sources.user_file, Path::new("/home/u/.config/stockade/config.toml"));
    assert_eq!(sources.state_directory, Path::new("/home/u/.local/state/stockade"));
}
