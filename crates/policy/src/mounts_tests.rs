//! Tests of the search for other paths: mount tables as text, and directories for overlays.

use super::*;
use crate::ResolveError;

const ROOT: &str = "1 0 8:1 / / rw - ext4 /dev/a rw";
const HOME: &str = "2 1 8:2 / /home rw - ext4 /dev/b rw";

fn table(lines: &[&str]) -> MountSnapshot {
    MountSnapshot::parse(lines.join("\n").as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn others(lines: &[&str], path: &str) -> Vec<String> {
    let found = table(lines).other_paths([Path::new(path)]).unwrap_or_else(|error| panic!("{error}"));
    let mut found: Vec<String> = found.iter().map(|other| other.path.display().to_string()).collect();
    found.sort();
    found
}

#[track_caller]
fn check(lines: &[&str], path: &str, expected: &[&str]) {
    assert_eq!(others(lines, path), expected, "{path}");
}

/// A path whose directories do not exist here, so no symbolic link is on the way.
const SECRET: &str = "/home/nobody-here/.ssh";

#[test]
fn a_bind_mount_gives_another_path() {
    check(&[ROOT, HOME], SECRET, &[]);
    for (root, expected) in [
        ("/", "/alt/nobody-here/.ssh"),
        ("/nobody-here", "/alt/.ssh"),
        ("/nobody-here/.ssh", "/alt"),
        // A directory or a file in it.
        ("/nobody-here/.ssh/keys", "/alt"),
    ] {
        check(&[ROOT, HOME, &format!("3 1 8:2 {root} /alt rw - ext4 /dev/b rw")], SECRET, &[expected]);
    }
    for other in ["8:2 /nobody-here/.sshd", "8:2 /other", "8:3 /nobody-here"] {
        check(&[ROOT, HOME, &format!("3 1 {other} /alt rw - ext4 /dev/b rw")], SECRET, &[]);
    }
    check(&[ROOT, "3 1 8:1 / /alt rw - ext4 /dev/a rw"], SECRET, &["/alt/home/nobody-here/.ssh"]);
}

#[test]
fn a_home_that_is_a_bind_mount_itself_has_the_path_of_its_source() {
    let home = "2 1 8:1 /persist/u /home/nobody-here rw - ext4 /dev/a rw";
    check(&[ROOT, home], SECRET, &["/persist/u/.ssh"]);
    check(&[ROOT, home], "/persist/u/.ssh", &["/home/nobody-here/.ssh"]);
    // Each subvolume of one filesystem has its own root.
    let volumes = ["1 0 0:30 /@ / rw - btrfs /dev/a rw", "2 1 0:30 /@home /home rw - btrfs /dev/a rw"];
    check(&volumes, SECRET, &[]);
    let all = [volumes[0], volumes[1], "3 1 0:30 / /all rw - btrfs /dev/a rw"];
    check(&all, SECRET, &["/all/@home/nobody-here/.ssh"]);
}

#[test]
fn mounts_within_the_path_count() {
    let keys = "3 2 8:3 /k /home/nobody-here/.ssh/keys rw - ext4 /dev/c rw";
    check(&[ROOT, HOME, keys], SECRET, &[]);
    check(&[ROOT, HOME, keys, "4 1 8:3 / /usb rw - ext4 /dev/c rw"], SECRET, &["/usb/k"]);
    check(&[ROOT, HOME, keys, "4 1 8:3 /k/one /usb rw - ext4 /dev/c rw"], SECRET, &["/usb"]);
    // The path is a mount point itself: the directory that it covers is not queried.
    let own = "3 2 8:3 / /home/nobody-here/.ssh rw - ext4 /dev/c rw";
    check(&[ROOT, HOME, own, "4 1 8:2 / /alt rw - ext4 /dev/b rw"], SECRET, &[]);
    // Mounts inside a second mount.
    let nested = ["3 1 8:2 / /alt rw - ext4 /dev/b rw", "4 3 8:2 /nobody-here /alt/again rw - ext4 /dev/b rw"];
    check(&[ROOT, HOME, nested[0], nested[1]], SECRET, &["/alt/again/.ssh", "/alt/nobody-here/.ssh"]);
}

#[test]
fn a_covered_mount_gives_no_path() {
    let alt = "3 1 8:2 / /alt rw - ext4 /dev/b rw";
    for cover in [
        // At the same path, within it.
        "4 3 0:9 / /alt rw - tmpfs none rw",
        "4 3 0:9 / /alt/nobody-here rw - tmpfs none rw",
    ] {
        check(&[ROOT, HOME, alt, cover], SECRET, &[]);
    }
    let deep = "3 1 8:2 / /mnt/alt rw - ext4 /dev/b rw";
    check(&[ROOT, HOME, deep, "4 1 0:9 / /mnt rw - tmpfs none rw"], SECRET, &[]);
    // Beside it, or deeper.
    for cover in ["4 3 0:9 / /alt/other rw - tmpfs none rw", "4 3 0:9 / /alt/nobody-here/.ssh/x rw - tmpfs none rw"] {
        check(&[ROOT, HOME, alt, cover], SECRET, &["/alt/nobody-here/.ssh"]);
    }
    // The lower home is covered, so its second path shows another directory.
    let upper = "4 2 8:3 / /home rw - ext4 /dev/c rw";
    check(&[ROOT, HOME, alt, upper], SECRET, &[]);
    check(&[ROOT, HOME, alt, upper, "5 1 8:3 / /new rw - ext4 /dev/c rw"], SECRET, &["/new/nobody-here/.ssh"]);
    // Of two mounts at `/`, both are reachable, the upper one by `/..`.
    let over = "4 1 8:3 / / rw - ext4 /dev/c rw";
    check(&[ROOT, HOME, alt, over], SECRET, &["/alt/nobody-here/.ssh"]);
}

#[test]
fn a_mount_point_may_have_spaces_and_any_bytes() {
    let alt = r"3 1 8:2 /nobody-here /with\040space\011\134x rw shared:1 - ext4 /dev/b rw";
    check(&[ROOT, HOME, alt], SECRET, &["/with space\t\\x/.ssh"]);
}

#[test]
fn kernel_filesystems_are_left_out() {
    let proc = ["3 1 0:5 / /proc rw - proc proc rw", "4 1 0:5 / /alt/proc rw - proc proc rw"];
    assert!(table(&[ROOT, proc[0], proc[1]]).is_plain());
    check(&[ROOT, proc[0], proc[1]], "/proc/self", &[]);
}

/// A filesystem with layers, which must exist.
struct Layers(tempfile::TempDir);

impl Layers {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["home/.ssh", "low,er", "a:b", "upper"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("home", directory.path().join("link")).unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().canonicalize().unwrap().join(name).display().to_string()
    }
}

#[test]
fn an_overlay_shows_its_layers_and_they_show_it() {
    let layers = Layers::new();
    let [home, link, comma, colon, upper] =
        ["home", "link", r"low\054er", "a:b", "upper"].map(|name| layers.path(name));
    let colon = colon.replace(':', r"\134:");
    let secret = layers.path("home/.ssh");
    for options in [
        format!("lowerdir={home}"),
        format!("lowerdir={link}:/none"),
        format!("lowerdir={comma}:{home},upperdir={upper},workdir=/w"),
        format!("lowerdir={colon}::{home}"),
        format!("lowerdir+={upper},lowerdir+={home}"),
        format!("lowerdir=/none,upperdir={home},workdir=/w"),
    ] {
        let overlay = format!("3 1 0:40 / /alt rw - overlay none rw,{options}");
        // Other layers may contain a copy that the overlay made.
        let shown = |lines: &[&str]| {
            let is_layer = |path: &String| Path::new(path).starts_with(layers.path(""));
            others(lines, &secret).into_iter().filter(|path| !is_layer(path)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[ROOT, &overlay]), ["/alt/.ssh"], "{options}");
        let bound = "4 1 0:40 /.ssh /bound rw - overlay none rw";
        assert_eq!(shown(&[ROOT, &overlay, bound]), ["/alt/.ssh", "/bound"], "{options}");
        check(&[ROOT, &overlay], &layers.path("other"), &[]);
        // All of the overlay is within the path of the query.
        let above = layers.path("");
        check(&[ROOT, &overlay], &above, &["/alt"]);
    }
    let overlay = format!("3 1 0:40 / /alt rw - overlay none rw,lowerdir={comma}:{home},upperdir={upper},workdir=/w");
    let expected = [layers.path("home/x"), layers.path("low,er/x"), layers.path("upper/x")];
    check(&[ROOT, &overlay], "/alt/x", &expected.each_ref().map(String::as_str));
}

#[test]
fn a_relative_layer_may_be_any_directory_of_that_name() {
    for (lower, path, expected) in [
        ("nobody-here", SECRET, &["/alt/.ssh"][..]),
        ("../../home/nobody-here", SECRET, &["/alt/.ssh"]),
        ("./.ssh", SECRET, &["/alt"]),
        ("someone", SECRET, &[]),
        ("nobody-here", "/etc/x", &[]),
    ] {
        let overlay = format!("3 1 0:40 / /alt rw - overlay none rw,lowerdir={lower}");
        check(&[ROOT, &overlay], path, expected);
    }
}

#[test]
fn layers_of_another_namespace_lead_nowhere() {
    // Like in a container: the layers are on the host. One has a path that exists here too.
    let layers = Layers::new();
    let home = layers.path("home");
    let root = format!("1 0 0:40 / / rw - overlay none rw,lowerdir=/none/l/A:/none/l/B:{home},upperdir=/none/u");
    let found = others(&[&root], &layers.path("home/.ssh"));
    assert!(found.len() <= MAX_OVERLAY_STEPS, "{found:?}");
}

#[test]
fn links_are_resolved_first() {
    let layers = Layers::new();
    let alt = format!("3 1 8:1 {} /alt rw - ext4 /dev/a rw", layers.path("home"));
    check(&[ROOT, &alt], &layers.path("link/.ssh"), &["/alt/.ssh"]);
    check(&[ROOT, &alt], &layers.path("link"), &["/alt"]);
    check(&[ROOT, &alt], &layers.path("link/absent/file"), &["/alt/absent/file"]);
}

#[test]
fn a_circle_of_mounts_ends() {
    // No kernel writes such a table.
    let circle = ["3 4 8:2 / /home/a rw - ext4 /dev/b rw", "4 3 8:2 / /home/a/home rw - ext4 /dev/b rw"];
    check(&[ROOT, HOME, circle[0], circle[1]], SECRET, &[]);
    check(&[ROOT, HOME, "3 3 8:2 / /home rw - ext4 /dev/b rw"], SECRET, &[]);
    // A directory that is mounted in itself.
    let within = "3 2 8:2 /nobody-here /home/nobody-here/.ssh/self rw - ext4 /dev/b rw";
    check(&[ROOT, HOME, within], SECRET, &[]);
}

#[test]
fn there_are_bounds_and_unknown_input_is_refused() {
    let many = |count: usize| -> String {
        let mounts = (2..=count).map(|id| format!("{id} 1 8:2 / /m{id} rw - ext4 /dev/b rw\n"));
        std::iter::once(format!("{ROOT}\n")).chain(mounts).collect()
    };
    let most = MountSnapshot::parse(many(MAX_MOUNTS).as_bytes()).unwrap();
    assert!(most.other_paths([Path::new("/etc/x")]).unwrap().is_empty());
    let error = most.other_paths([Path::new("/m2/x")]).unwrap_err();
    assert_eq!(error, MountsError::TooManyPaths { path: "/m2/x".to_owned() });
    let one_more = MountSnapshot::parse(many(MAX_MOUNTS + 1).as_bytes()).unwrap_err();
    let no_root = MountSnapshot::parse(HOME.as_bytes()).unwrap_err();
    let broken = MountSnapshot::parse(format!("{ROOT}\nnonsense\n").as_bytes()).unwrap_err();
    assert_eq!((&one_more, &no_root), (&MountsError::TooManyMounts, &MountsError::NoRoot));
    for error in [error, one_more, no_root, broken] {
        assert!(error.to_string().contains("\nhint: "), "{error}");
    }
    // Each path has few others, all together too many.
    let paths: Vec<PathBuf> = (0..=MAX_OTHER_PATHS).map(|n| format!("/home/x{n}").into()).collect();
    let alt = table(&[ROOT, HOME, "3 1 8:2 / /alt rw - ext4 /dev/b rw"]);
    assert!(alt.other_paths(paths.iter().map(PathBuf::as_path)).is_err());
    assert!(alt.other_paths(paths[1..].iter().map(PathBuf::as_path)).is_ok());
}

#[test]
fn the_mounts_of_this_process_are_understood() {
    let table = MountSnapshot::of_this_process().unwrap_or_else(|error| panic!("{error}"));
    table.other_paths([Path::new("/etc/passwd")]).unwrap_or_else(|error| panic!("{error}"));
}

/// The name of a mount point may be the command's choice, and the hint is there to be copied.
#[test]
fn no_hint_ends_its_own_quotes() {
    let name = "/m/x'; touch ran; '";
    let word = r"findmnt --target '/m/x'\''; touch ran; '\'''";
    let too_many = MountsError::TooManyPaths { path: name.to_owned() }.to_string();
    assert!(too_many.ends_with(word), "{too_many}");
    let (path, own) = ("/m".to_owned(), "/state".to_owned());
    let by_mount = ResolveError::OwnByMount { power: "write", path, location: name.to_owned(), own }.to_string();
    assert!(by_mount.ends_with(word), "{by_mount}");
}
