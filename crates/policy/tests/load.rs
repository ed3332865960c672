//! Reading files: what is there and cannot be used stops everything (L6), and a
//! stranger's file is not followed anywhere.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use stockade_model::{ApprovalMode, IsolationLevel};
use stockade_policy::load::{ConfigSources, LoadError, load_settings};
use stockade_policy::{PolicySettings, resolve_profile};
use tempfile::TempDir;

struct World {
    top: TempDir,
    sources: ConfigSources,
}

impl World {
    fn new() -> Self {
        let top = TempDir::new().unwrap();
        let at = |name: &str| top.path().join(name);
        for directory in ["etc", "home", "config/stockade", "state", "ws"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        let mut sources =
            ConfigSources::at_standard_paths(&at("home"), Some(&at("config")), Some(&at("state")), Some(&at("ws")));
        sources.system_owner = rustix::process::geteuid().as_raw();
        sources.system_file = at("etc/config.toml");
        sources.managed_file = at("etc/managed.toml");
        Self { top, sources }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.top.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn load(&self) -> Result<PolicySettings, LoadError> {
        load_settings(&self.sources)
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
    assert_eq!((settings.profile.value.as_str(), settings.level.value), ("workspace", IsolationLevel::Full));
}

#[test]
fn all_layers_are_read() {
    let world = World::new();
    world.write("etc/config.toml", "level = \"restricted\"");
    world.write("config/stockade/config.toml", "approval_mode = \"on-request\"");
    world.write("ws/.stockade/config.toml", "approval_mode = \"never\"");
    let settings = world.load().unwrap();
    assert_eq!((settings.level.value, settings.approval_mode.value), (IsolationLevel::Restricted, ApprovalMode::Never));
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
    world.refused("not a regular file");
    fs::remove_dir(ws.join(".stockade.toml")).unwrap();
    let fifo = ws.join(".stockade.toml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600), 0).unwrap();
    world.refused("not a regular file");
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
    for (mode, by) in [(0o666, "its group and by everybody"), (0o646, "everybody")] {
        fs::set_permissions(&user, fs::Permissions::from_mode(mode)).unwrap();
        world.refused(&format!("config.toml` may be written by {by} (mode {mode:04o})"));
    }
}

#[test]
fn own_directories_are_known_under_every_name() {
    let world = World::new();
    let top = world.top.path().canonicalize().unwrap();
    symlink(top.join("real"), top.join("linked")).unwrap();
    fs::create_dir(top.join("real")).unwrap();
    let mut sources = world.sources.clone();
    sources.state_directory = top.join("linked/not/yet");
    let settings = load_settings(&sources).unwrap();
    for (workspace, fits) in [("real", false), ("real/not", false), ("linked/not/yet", false), ("ws", true)] {
        let resolved = resolve_profile(&settings, "workspace", &top.join(workspace), &[]);
        assert_eq!(resolved.is_ok(), fits, "{workspace}: {:?}", resolved.err());
    }
}

#[test]
fn relative_variables_are_ignored() {
    let sources = ConfigSources::at_standard_paths(Path::new("/home/u"), Some(Path::new("x")), None, None);
    assert_eq!(sources.user_file, Path::new("/home/u/.config/stockade/config.toml"));
    assert_eq!(sources.state_directory, Path::new("/home/u/.local/state/stockade"));
}

#[test]
fn a_file_that_another_user_could_change_is_refused() {
    for (file, directory) in [("config/stockade/config.toml", "config"), ("etc/config.toml", "etc")] {
        let world = World::new();
        world.write(file, "approval_mode = \"never\"");
        world.load().unwrap();
        let directory = world.top.path().join(directory);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        world.refused(&format!("`{}` may be written by its group and by everybody (mode 0777)", directory.display()));
        if rustix::process::geteuid().is_root() {
            // A group that has others than the owner; an ordinary user may be in none.
            std::os::unix::fs::chown(&directory, None, Some(1)).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o775)).unwrap();
            world.refused(&format!("`{}` may be written by its group (mode 0775)", directory.display()));
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        world.load().unwrap();
    }
}

#[test]
fn a_file_with_another_name_is_refused() {
    let world = World::new();
    world.write("config/stockade/config.toml", "approval_mode = \"never\"");
    world.load().unwrap();
    fs::create_dir_all(world.top.path().join("ws")).unwrap();
    fs::hard_link(world.top.path().join("config/stockade/config.toml"), world.top.path().join("ws/c")).unwrap();
    world.refused("has a second hard link, through which a run could write it");
    fs::remove_file(world.top.path().join("ws/c")).unwrap();
    world.load().unwrap();
}

#[test]
fn a_file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a file of another user (needs root)");
        return;
    }
    let give = |path: &Path, to: u32| std::os::unix::fs::lchown(path, Some(to), None).unwrap();
    for (file, foreign_path) in [
        ("config/stockade/config.toml", "config/stockade/config.toml"),
        ("config/stockade/config.toml", "config/stockade"),
        ("config/stockade/config.toml", "config"),
        ("etc/config.toml", "etc/config.toml"),
        ("etc/managed.toml", "etc"),
    ] {
        let world = World::new();
        world.write(file, "approval_mode = \"never\"");
        world.load().unwrap();
        give(&world.top.path().join(foreign_path), 54_321);
        world.refused(&format!("{foreign_path}` belongs to user 54321"));
    }
    // A link of another user chooses the file, although the file is the person's own.
    let world = World::new();
    world.write("dotfiles/config.toml", "");
    let user = world.top.path().join("config/stockade/config.toml");
    symlink("../../dotfiles/config.toml", &user).unwrap();
    world.load().unwrap();
    give(&user, 54_321);
    world.refused("belongs to user 54321");
    // The project's file may only tighten, so anybody's will do.
    let world = World::new();
    world.write("ws/.stockade.toml", "approval_mode = \"never\"");
    give(&world.top.path().join("ws/.stockade.toml"), 54_321);
    give(&world.top.path().join("ws"), 54_321);
    fs::set_permissions(world.top.path().join("ws/.stockade.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(world.load().unwrap().approval_mode.value, ApprovalMode::Never);
}

#[test]
fn no_link_to_own_files_passes_a_writable_directory() {
    // A link at each part of the way, whether or not it leads anywhere yet.
    for (link, target) in [
        ("config/stockade", "../ws/new"),
        ("config/stockade", "../ws/there"),
        ("config/stockade", "../ws/there/../../elsewhere"),
        ("config/stockade", "../hop"),
        ("config/stockade/config.toml", "../../ws/config.toml"),
        ("config/stockade/keys", "../../ws/keys"),
        ("etc/managed.toml", "../ws/managed.toml"),
        ("state", "ws/state"),
        ("state/audit", "../ws/audit"),
    ] {
        let world = World::new();
        let top = world.top.path().canonicalize().unwrap();
        let mut sources =
            ConfigSources::at_standard_paths(&top.join("home"), Some(&top.join("config")), None, Some(&top.join("ws")));
        sources.system_owner = rustix::process::geteuid().as_raw();
        (sources.system_file, sources.managed_file) = (top.join("etc/config.toml"), top.join("etc/managed.toml"));
        sources.state_directory = top.join("state");
        for directory in ["ws/there", "elsewhere", "other"] {
            fs::create_dir(top.join(directory)).unwrap();
        }
        symlink("ws/hopped", top.join("hop")).unwrap();
        let path = top.join(link);
        let _ = fs::remove_dir(&path);
        let resolve = |workspace: &str| {
            resolve_profile(&load_settings(&sources).unwrap(), "workspace", &top.join(workspace), &[])
                .map_err(|e| e.to_string())
        };
        resolve("ws").unwrap();
        symlink(target, &path).unwrap();
        let error = resolve("ws").unwrap_err();
        assert!(error.contains("own files") && error.contains("\nhint: "), "{link} -> {target}: {error}");
        if !top.join(target.trim_start_matches("../")).exists() {
            assert!(error.contains(&format!("the link `{}", top.display())), "{link} -> {target}: {error}");
        }
        // Another workspace is not concerned, but its writable directories are.
        resolve("other").unwrap();
        let grants = [stockade_model::Grant::Write(top.join("ws"))];
        let granted = resolve_profile(&load_settings(&sources).unwrap(), "workspace", &top.join("other"), &grants);
        assert!(granted.is_err(), "{link} -> {target}");
    }
}

#[test]
fn credentials_are_hidden_in_every_home_of_the_person() {
    let world = World::new();
    let mut sources = world.sources.clone();
    sources.other_homes = vec!["/real/home".into(), sources.home.clone()];
    let hidden = |sources: &ConfigSources| {
        let profile = resolve_profile(&load_settings(sources).unwrap(), "workspace", Path::new("/w"), &[]).unwrap();
        profile.filesystem.hide.into_iter().map(|path| path.as_path().to_owned()).collect::<Vec<_>>()
    };
    let ssh = [sources.home.join(".ssh"), "/real/home/.ssh".into(), "/real/home/.aws".into()];
    assert!(ssh.iter().all(|path| hidden(&sources).contains(path)));
    assert!(!hidden(&world.sources).contains(&ssh[1]), "the control");
    // What is revealed in one home is not in the others.
    world.write("config/stockade/config.toml", "[profiles.workspace]\nreveal = [\"~/.aws\"]\n");
    let profile = resolve_profile(&load_settings(&sources).unwrap(), "workspace", Path::new("/w"), &[]).unwrap();
    assert!(!profile.filesystem.reveal.iter().any(|path| path.as_path().starts_with("/real")));
}
