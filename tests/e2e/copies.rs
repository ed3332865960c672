//! Copies between the host and a sandbox: nothing that the host runs or obeys comes out of
//! one without a grant, and no hidden file goes into one.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use stockade_testkit::{ProgramEnd, ProgramOutput};

use crate::sandbox::{create, done, exec, refused, sandbox_dir, stockade};
use crate::world::{World, binary, each_user};

/// What a command leaves in its workspace for the host to run or obey.
const PLANTED: &str = "set -e; mkdir repo; cd repo; echo content > file; \
    mkdir -p .git/hooks .git/objects .git/refs; echo planted > .git/config; echo planted > .git/hooks/pre-commit; \
    echo planted > .ENVRC; mkdir -p sub/.VsCode; echo planted > sub/.VsCode/tasks.json; \
    mkdir b; echo planted > b/config.toml; ln -s b .cargo; \
    mkdir -p bare.git/objects bare.git/refs bare.git/hooks; touch bare.git/HEAD; echo planted > bare.git/config; \
    printf planted > $(printf '.env\\342\\200\\214rc')";

/// Leaves that in the workspace of a sandbox, as its commands could.
fn plant(world: &World, id: &str) {
    let script = format!("cd {}/workspace; {PLANTED}", sandbox_dir(world, id).display());
    let made = world.run(&world.bare(&["sh", "-c", &script]));
    assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
}

/// Demands that a copy was done but for what the rules leave out.
#[track_caller]
fn partly(world: &World, arguments: &[&str]) -> ProgramOutput {
    let output = stockade(world, arguments);
    assert_eq!(output.ended, ProgramEnd::Code(1), "{arguments:?}\n{}", output.combined_text());
    assert!(output.stderr.contains("left out"), "{arguments:?}\n{}", output.stderr);
    output
}

/// The files below a directory that hold what was planted.
fn planted(top: &Path) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rls", "planted"]).arg(top).output().unwrap();
    let mut found: Vec<String> = String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn a_copy_out_makes_no_protected_name() {
    each_user(|world| {
        let id = create(world, &[]);
        plant(world, &id);
        let at = |path: &str| format!("{id}:{path}");
        let to = world.workspace().join("repo");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let output = partly(world, &["copy", &at("repo"), &text(&to)]);
        for name in [".git", ".ENVRC", "sub/.VsCode", ".cargo", "bare.git/config", "bare.git/hooks"] {
            assert!(to.join(name).symlink_metadata().is_err(), "{name}");
            assert!(output.stderr.contains(name), "{name}: {}", output.stderr);
        }
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "content\n");
        assert_eq!(planted(&to), [text(&to.join("b/config.toml"))], "under a name that means nothing");

        let archive = text(&world.workspace().join("archive.tar"));
        let script = format!("{} sandbox copy {} - > {archive}", binary(), at("repo"));
        let packed = world.run(&world.bare(&["sh", "-c", &script]));
        assert_eq!(packed.ended, ProgramEnd::Code(1), "{}", packed.combined_text());
        let listed = world.run(&world.bare(&["tar", "-tf", &archive])).stdout;
        assert!(listed.contains("file\n") && listed.contains("b/config.toml"), "{listed}");
        for name in [".git", "ENVRC", "VsCode", ".cargo", "bare.git/config", "bare.git/hooks"] {
            assert!(!listed.lines().any(|line| line.contains(name) && !line.starts_with("bare")), "{name}: {listed}");
        }
        assert!(!listed.contains("bare.git/config") && !listed.contains("bare.git/hooks"), "{listed}");

        // The control: a grant for each.
        let granted = text(&world.workspace().join("granted"));
        let grants = ["", "/config", "/hooks"].map(|name| format!("write {granted}/.git{name}"));
        let words = ["copy", &at("repo/.git"), &format!("{granted}/.git")].map(str::to_owned);
        world.dir("ws/granted");
        let words: Vec<String> =
            words.into_iter().chain(grants.into_iter().flat_map(|grant| ["--grant".to_owned(), grant])).collect();
        done(world, &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(planted(Path::new(&granted)).len(), 2);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn a_copy_out_replaces_nothing_that_the_host_obeys_and_follows_no_link_there() {
    each_user(|world| {
        let id = create(world, &[]);
        plant(world, &id);
        let at = |path: &str| format!("{id}:{path}");
        for directory in ["ws/host", "ws/host/.git", "ws/host/b", "ws/plain"] {
            world.dir(directory);
        }
        let config = world.file("ws/host/.git/config", "mine");
        let host = world.workspace().join("host");
        let link = |to: &str, name: &str| {
            symlink(to, world.workspace().join(name)).unwrap();
            std::os::unix::fs::lchown(world.workspace().join(name), Some(world.account.uid), Some(world.account.gid))
                .unwrap();
        };
        link("host/.git", "led");
        link("b", "host/.cargo");
        link("b/rc", "host/.envrc");
        link("host/.git/config", "leaf");
        let ws = world.workspace();
        let to = |name: &str| ws.join(name).to_str().unwrap().to_owned();
        let replacing = |from: &str, name: &str, why: &str| {
            refused(world, &["copy", &at(from), &to(name), "--replace"], why);
        };
        replacing("repo/.git/config", "host/.git/config", "protected");
        replacing("repo/.git/config", "host/.git", "protected");
        replacing("repo/.git/hooks", "host/.git", "protected");
        replacing("repo/.git", "plain", "protected");
        replacing("repo/.ENVRC", "plain/.EnvRC", "protected");
        replacing("repo/.git/config", "led/config", "symbolic link");
        replacing("repo/file", "led/new", "symbolic link");
        replacing("repo/b/config.toml", "host/b", "the target of a protected link");
        replacing("repo/b/config.toml", "host/b/rc", "the target of a protected link");
        // A link in the place of a file is replaced itself, and leads nowhere before that.
        refused(world, &["copy", &at("repo/file"), &to("leaf")], "remove it first");
        done(world, &["copy", &at("repo/file"), &to("leaf"), "--replace"]);
        done(world, &["copy", &at("repo/file"), &to("host/b/other")]);
        refused(world, &["copy", &at("repo/file"), &to("led/")], "remove it first");
        assert_eq!(fs::read_to_string(&config).unwrap(), "mine");
        assert_eq!(fs::read_dir(host.join(".git")).unwrap().count(), 1);
        assert_eq!(planted(&ws), [""; 0]);
        done(world, &["destroy", &id]);
    });
}

/// The directory that a sandbox has bound is the host's as well.
#[test]
fn a_copy_into_a_bound_directory_makes_no_protected_name() {
    each_user(|world| {
        let project = world.dir("ws/project");
        world.dir("ws/project/b");
        symlink("b", project.join(".cargo")).unwrap();
        let id = create(world, &["--bind", project.to_str().unwrap()]);
        let make = "set -e; mkdir -p in/x/bare.git/objects in/x/bare.git/refs in/l/c; cd in; \
            echo planted > x/bare.git/config; touch x/bare.git/HEAD; ln -s c l/.cargo; echo planted > l/c/config.toml; \
            echo planted > config.toml; mkdir top; echo planted > top/.envrc; tar -C x -cf x.tar .; tar -C l -cf l.tar .; \
            mkdir e; cp -r config.toml e; tar -C e -cf e.tar .";
        let made = world.run(&world.bare(&["sh", "-c", make]));
        assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
        let stream = |archive: &str, to: &str| {
            let script = format!("{} sandbox copy - {id}:{to} < in/{archive}", binary());
            let output = world.run(&world.bare(&["sh", "-c", &script]));
            assert_eq!(output.ended, ProgramEnd::Code(125), "{archive} {to}\n{}", output.combined_text());
        };
        stream("x.tar", "new");
        stream("l.tar", "new");
        stream("e.tar", "b");
        refused(world, &["copy", "in/config.toml", &format!("{id}:b/config.toml")], "the target of a protected link");
        partly(world, &["copy", "in/top", &format!("{id}:top")]);
        partly(world, &["copy", "in/x/bare.git", &format!("{id}:any")]);
        assert_eq!(planted(&project), [""; 0]);
        // The control: other names.
        done(world, &["copy", "in/config.toml", &format!("{id}:b/other.toml")]);
        assert_eq!(planted(&project).len(), 1);
        done(world, &["destroy", &id]);
    });
}

#[test]
fn a_copy_in_takes_no_hidden_file_along() {
    each_user(|world| {
        for directory in ["home/project", "home/project/deep", "home/.config/stockade", "home/.aws"] {
            world.dir(directory);
        }
        let home = world.home();
        let project = home.join("project");
        for name in ["secret", "deep/key", "linked"] {
            world.file(&format!("home/project/{name}"), "planted\n");
        }
        let credentials = world.file("home/.aws/credentials", "planted\n");
        world.file("home/project/open", "text\n");
        fs::hard_link(project.join("secret"), project.join("another-name")).unwrap();
        symlink("project", home.join("way")).unwrap();
        let profile = "[profiles.mine]\nextends = \"workspace\"\n\
            hide = [\"~/project/secret\", \"~/project/deep\", \"~/way/linked\"]\n";
        let configuration = world.file("home/.config/stockade/config.toml", profile);
        chown(&configuration, Some(world.account.uid), Some(world.account.gid)).unwrap();
        let text = project.to_str().unwrap();
        // The control.
        let id = create(world, &["--copy", text]);
        assert_eq!(planted(&sandbox_dir(world, &id).join("workspace")).len(), 4);
        done(world, &["destroy", &id]);

        let made = stockade(world, &["create", "--copy", text, "--profile", "mine"]);
        assert_eq!(made.ended, ProgramEnd::Code(0), "{}", made.combined_text());
        let id = made.stdout.trim();
        for name in ["secret", "deep", "linked", "another-name"] {
            assert!(made.stderr.contains(&format!("left out: {name} ")), "{name}: {}", made.stderr);
        }
        let own = sandbox_dir(world, id);
        assert_eq!(planted(&own), [""; 0]);
        assert_eq!(fs::read_to_string(own.join("workspace/open")).unwrap(), "text\n");
        let credentials = credentials.to_str().unwrap();
        let to = format!("{id}:/home/agent/in");
        refused(world, &["copy", credentials, &to], "hidden from runs");
        refused(world, &["copy", home.join("way/deep").to_str().unwrap(), &to], "hidden from runs");
        partly(world, &["copy", text, &to]);
        assert_eq!(planted(&own), [""; 0]);
        let granted = format!("read {credentials}");
        done(world, &["copy", credentials, &format!("{id}:/home/agent/granted"), "--grant", &granted]);
        assert_eq!(planted(&own).len(), 1);

        // A snapshot that was made by hand.
        let snapshot = world.dir("ws/snapshot");
        world.dir("ws/snapshot/workspace");
        symlink(home.join(".aws"), snapshot.join("home")).unwrap();
        refused(world, &["create", "--from", snapshot.to_str().unwrap()], "");
        assert_eq!(fs::metadata(&snapshot).unwrap().uid(), world.account.uid);
        done(world, &["destroy", id]);
    });
}

/// As `/tmp` is: everybody may write there, and it belongs to root.
#[test]
fn a_copy_out_into_a_directory_of_another_user() {
    each_user(|world| {
        let shared = world.dir("shared");
        chown(&shared, Some(0), Some(0)).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let id = create(world, &[]);
        exec(world, &id, "cd /workspace; mkdir d; echo text >d/file");
        for (from, to) in [("d/file", "file"), ("d", "d")] {
            let to = shared.join(to);
            done(world, &["copy", &format!("{id}:{from}"), to.to_str().unwrap()]);
            assert_eq!(fs::symlink_metadata(to).unwrap().uid(), world.account.uid);
        }
        assert_eq!(fs::read_to_string(shared.join("d/file")).unwrap(), "text\n");
        done(world, &["destroy", &id]);
    });
}
