//! The caches of tools as layers of the workspace: tools run without a question, the
//! host's caches stay as they are, and no other workspace sees what a run wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand, TestUser, UserAccount};

use crate::toolchain::toolchain;
use crate::world::{World, binary, each_user, one_user};

const LEVELS: [&str; 2] = ["full", "restricted"];

/// Every object beneath a directory: its kind, mode and content.
fn tree(top: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let mode = entry.metadata().unwrap().mode();
            let content = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(path.display().to_string(), (mode, content));
            if kind.is_dir() {
                waiting.push(path);
            }
        }
    }
    found
}

/// The host's caches: one of each kind, with something in it, and what lies beside.
pub fn furnish(world: &World) {
    for directory in [
        "home/.cargo",
        "home/.cargo/bin",
        "home/.cargo/registry",
        "home/.npm",
        "home/.npm/_cacache",
        "home/.cache",
        "home/.cache/pip",
        "home/.cache/go-build",
        "home/go",
        "home/go/pkg",
        "home/go/pkg/mod",
        "home/.ssh",
    ] {
        world.dir(directory);
    }
    for (file, text) in [
        ("home/.cargo/config.toml", "[net]\noffline = true\n"),
        ("home/.cargo/credentials.toml", "secret"),
        ("home/.cargo/bin/mine", "#!/bin/sh\n"),
        ("home/.cargo/registry/seen", "host"),
        ("home/.npm/_cacache/seen", "host"),
        ("home/.ssh/id", "key"),
    ] {
        world.file(file, text);
    }
}

pub fn caches(world: &World) -> Vec<BTreeMap<String, (u32, Vec<u8>)>> {
    [".cargo", ".npm", ".cache", "go", ".ssh"].map(|name| tree(&world.home().join(name))).into()
}

/// `stockade cache` with this world's state.
pub fn cache(world: &World, arguments: &[&str]) -> ProgramOutput {
    let binary = binary();
    let argv: Vec<&str> = [binary.as_str(), "cache"].into_iter().chain(arguments.iter().copied()).collect();
    world.run(&world.bare(&argv))
}

/// A script in the workspace, at a level, that must pass and be refused nothing.
#[track_caller]
fn passes_unasked(world: &World, level: &str, script: &str) -> Value {
    unasked(&world.run(&scripted(world, &["--json", "--level", level], script)), level, script)
}

/// A run of a script in a file of the workspace: no rule speaks of its text.
pub fn scripted(world: &World, options: &[&str], script: &str) -> TestCommand {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("script{}.sh", NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = world.file(&format!("ws/{name}"), script).display().to_string();
    world.stockade(options, &["sh", "-e", &path])
}

/// The same, expected to pass.
#[track_caller]
fn passes(world: &World, options: &[&str], script: &str) -> ProgramOutput {
    let output = world.run(&scripted(world, options, script));
    assert_eq!(output.ended, ProgramEnd::Code(0), "{options:?}: {script}\n{}\n{}", output.stdout, output.stderr);
    output
}

#[track_caller]
fn unasked(output: &ProgramOutput, level: &str, script: &str) -> Value {
    let outcome: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|e| panic!("{level}: {script}: {e}\n{}\n{}", output.stdout, output.stderr));
    let attempt = &outcome["attempts"][0];
    assert_eq!(outcome["exit_code"], 0, "{level}: {script}\n{}", output.stdout);
    assert_eq!(outcome["approvals"].as_array().map_or(0, Vec::len), 0, "{level}: {script}");
    // What no grant would give was asked of nobody: pip tries whether there is IPv6.
    let denials = attempt["denials"].as_array().into_iter().flatten();
    let askable: Vec<&Value> = denials.filter(|denial| !denial["grant"].is_null()).collect();
    assert!(askable.is_empty(), "{level}: {script}: {askable:?}");
    outcome
}

fn is_root(world: &World) -> bool {
    world.account.user == TestUser::Root
}

#[test]
fn cargo_builds_without_a_question() {
    let toolchain = toolchain();
    each_user(|world| {
        furnish(world);
        let host = caches(world);
        let toolchain_path = world.dir("home/toolchain").display().to_string();
        for (file, text) in [
            (
                "ws/Cargo.toml",
                "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndep = { path = \"dep\" }\n",
            ),
            ("ws/src/main.rs", "fn main() { println!(\"{}\", dep::say()); }\n"),
            ("ws/dep/Cargo.toml", "[package]\nname = \"dep\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
            ("ws/dep/src/lib.rs", "pub fn say() -> &'static str { \"built\" }\n"),
        ] {
            world.dir(Path::new(file).parent().unwrap().to_str().unwrap());
            world.file(file, text);
        }
        for level in LEVELS {
            let script = "cargo build --offline && cargo run --offline && rm -rf target";
            let mut command: TestCommand = world
                .stockade(&["--json", "--level", level], &["sh", "-ec", script])
                .env("PATH", format!("{toolchain_path}/bin:{}", crate::world::PATH));
            if TestUser::available_users().contains(&TestUser::Root) {
                let user = if is_root(world) {
                    String::new()
                } else {
                    format!("setpriv --reuid {} --regid {} --clear-groups", world.account.uid, world.account.gid)
                };
                let show = format!("mount --bind {} {toolchain_path} && exec {user} \"$@\"", toolchain.sysroot);
                command =
                    command.with_prefix(["unshare", "--mount", "--propagation", "private", "sh", "-c", &show, "sh"]);
            } else {
                command = command.env("PATH", format!("{}/bin:{}", toolchain.sysroot, crate::world::PATH));
            }
            let output =
                stockade_testkit::run_as(&UserAccount::for_user(TestUser::available_users()[0]).unwrap(), &command)
                    .unwrap();
            let outcome = unasked(&output, level, script);
            assert!(outcome["attempts"][0]["stdout"].as_str().unwrap().contains("built"), "{level}");
        }
        assert_eq!(caches(world), host, "the host's caches changed");
    });
}

#[test]
fn npm_pip_and_go_work_without_a_question() {
    one_user(|world| {
        furnish(world);
        let host = caches(world);
        for (file, text) in [
            ("ws/package.json", "{\"name\":\"app\",\"version\":\"1.0.0\",\"scripts\":{\"test\":\"node -e 1\"}}"),
            ("ws/dep/package.json", "{\"name\":\"dep\",\"version\":\"1.0.0\"}"),
            ("ws/py/setup.py", "from setuptools import setup\nsetup(name='dep', version='1', py_modules=['dep'])\n"),
            ("ws/py/dep.py", "said = 'installed'\n"),
            ("ws/go/go.mod", "module app\n\ngo 1.19\n"),
            ("ws/go/main.go", "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"went\") }\n"),
        ] {
            world.dir(Path::new(file).parent().unwrap().to_str().unwrap());
            world.file(file, text);
        }
        for level in LEVELS {
            passes_unasked(
                world,
                level,
                "export npm_config_update_notifier=false; npm test && npm install --offline --no-audit --no-fund ./dep && test -d node_modules/dep",
            );
            passes_unasked(
                world,
                level,
                "rm -rf venv && python3 -m venv venv && venv/bin/pip install --no-index --no-build-isolation ./py \
                 && venv/bin/python -c 'import dep; print(dep.said)'",
            );
            passes_unasked(world, level, "cd go && go build -o app . && ./app && rm app");
        }
        assert_eq!(caches(world), host, "the host's caches changed");
    });
}

#[test]
fn a_layer_is_seen_by_its_workspace_alone_and_persists() {
    each_user(|world| {
        furnish(world);
        let host = caches(world);
        let write = "test \"$(cat ~/.npm/_cacache/seen)\" = host; echo bad > ~/.npm/_cacache/seen; echo x > ~/.npm/new; \
                     rm -r ~/.cargo/registry/seen; echo y > ~/.cargo/registry/other; echo z > ~/.cargo/.package-cache";
        passes_unasked(world, "full", write);
        passes_unasked(
            world,
            "full",
            "test \"$(cat ~/.npm/_cacache/seen ~/.npm/new ~/.cargo/registry/other)\" = 'bad\nx\ny'; test ! -e ~/.cargo/registry/seen",
        );
        assert_eq!(caches(world), host);
        let other = world.dir("other").display().to_string();
        let look = "test \"$(cat ~/.npm/_cacache/seen ~/.cargo/registry/seen)\" = hosthost; test ! -e ~/.npm/new";
        let options = ["--json", "--level", "full", "--workspace", &other];
        unasked(&world.run(&scripted(world, &options, look)), "full", look);
        // Not by the path that the state has for it either.
        let all = "! grep -rqs bad ~/.local/state/stockade";
        passes(world, &options[1..], all);
        for level in LEVELS {
            world.passes(
                &["--level", level, "--workspace", &other],
                &["sh", "-c", "! cat ~/.local/state/stockade/caches/*/merged*/0/npm/upper/new"],
            );
        }
    });
}

#[test]
fn settings_and_hidden_paths_are_unchanged() {
    each_user(|world| {
        furnish(world);
        let host = caches(world);
        for level in LEVELS {
            for script in [
                "cat ~/.cargo/credentials.toml | grep -q secret",
                "echo x >> ~/.cargo/config.toml",
                "echo x > ~/.cargo/bin/new",
                "echo x >> ~/.cargo/bin/mine",
                "mv ~/.cargo/config.toml ~/.cargo/registry/",
                "mv ~/.cargo ~/.other",
                "ln ~/.cargo/credentials.toml ~/.cargo/registry/c && grep -q secret ~/.cargo/registry/c",
                "ln -s ~/.cargo/credentials.toml ~/.npm/c$$; grep -q secret ~/.npm/c$$",
                "ln -s ~/.ssh ~/.npm/s$$; grep -q key ~/.npm/s$$/id",
                "ln ~/.ssh/id \"$UV_CACHE_DIR/id\" && grep -q key \"$UV_CACHE_DIR/id\"",
                "ln -s ~/.ssh \"$UV_CACHE_DIR/ssh\"; grep -q key \"$UV_CACHE_DIR/ssh/id\"",
            ] {
                let output = world.run(&scripted(world, &["--level", level], script));
                assert_ne!(output.ended, ProgramEnd::Code(0), "{level}: {script}");
            }
        }
        assert_eq!(caches(world), host);
    });
}

#[test]
fn nothing_that_is_planted_in_a_layer_gives_anything() {
    each_user(|world| {
        furnish(world);
        let tool = world.file("home/.npm/tool", "#!/bin/sh\necho host\n");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let host = caches(world);
        for level in LEVELS {
            let plant = "for d in ~/.npm \"$UV_CACHE_DIR\"; do
                           touch \"$d/x\" || continue
                           cp /usr/bin/id \"$d/suid\"; chmod 4755 \"$d/suid\" || true
                           mknod \"$d/device\" b 7 0 || true
                           mkfifo \"$d/pipe\"; ln -s ~/.ssh \"$d/link\"
                           rm -rf \"$d/tool\"; printf '#!/bin/sh\\necho layer\\n' > \"$d/tool\"; chmod 755 \"$d/tool\"
                         done
                         rm -rf \"${UV_CACHE_DIR}\"; ln -s ~/.ssh \"${UV_CACHE_DIR}\"";
            passes(world, &["--level", level], plant);
            let gain = "for d in ~/.npm \"$UV_CACHE_DIR\"; do
                          test ! -b \"$d/device\" || exit 3
                          if grep -qs key \"$d/link/id\" \"$d/id\"; then exit 4; fi
                          if test -u \"$d/suid\"; then test \"$(\"$d/suid\" -u)\" = \"$(id -u)\" || exit 5; fi
                        done
                        test -d \"$UV_CACHE_DIR\" && test ! -L \"$UV_CACHE_DIR\" && touch \"$UV_CACHE_DIR/y\"";
            passes(world, &["--level", level], gain);
        }
        assert_eq!(caches(world), host);
        // Nothing of a layer belongs to a device or leads a host program anywhere.
        let listed = cache(world, &["list", "--json"]);
        assert_eq!(listed.ended, ProgramEnd::Code(0), "{}", listed.stderr);
        let cleared = cache(world, &["clear", "--all"]);
        assert_eq!(cleared.ended, ProgramEnd::Code(0), "{}", cleared.stderr);
        assert_eq!(caches(world), host);
    });
}

#[test]
fn a_grant_for_a_program_of_the_host_is_not_for_that_of_a_layer() {
    each_user(|world| {
        furnish(world);
        let tool = world.file("home/.npm/tool", "#!/bin/sh\necho host\n");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        let tool = tool.display().to_string();
        world.file("home/.config/stockade/config.toml", &format!("[profiles.workspace.exec]\nask = [\"{tool}\"]\n"));
        let grant = format!("exec {tool}");
        world.passes(&[], &["sh", "-c", "cd ~/.npm && printf '#!/bin/sh\\necho layer\\n' > tool"]);
        let output = world.run(&world.stockade(&["--grant", &grant], &["sh", "-c", "~/.npm/tool"]));
        assert!(!output.stdout.contains("layer"), "{}\n{}", output.stdout, output.stderr);
        assert_ne!(output.ended, ProgramEnd::Code(0));
    });
}

#[test]
fn a_variable_of_the_caller_is_kept() {
    each_user(|world| {
        furnish(world);
        for (name, value) in [("npm_config_cache", "/srv/npm"), ("PIP_CACHE_DIR", "/srv/pip"), ("GOCACHE", "/srv/go")] {
            for level in LEVELS {
                let command = world.stockade(&["--level", level], &["printenv", name]).env(name, value);
                assert_eq!(world.run(&command).stdout.trim(), value, "{level}");
            }
        }
        let command =
            world.stockade(&["--level", "full"], &["sh", "-c", "! touch ~/.npm/x"]).env("npm_config_cache", "/x");
        assert_eq!(world.run(&command).ended, ProgramEnd::Code(0), "the host's directory became a layer");
        let moved = world.stockade(&[], &["printenv", "SSL_CERT_FILE"]).env("SSL_CERT_FILE", "/etc/ssl/own.pem");
        assert_eq!(world.run(&moved).stdout.trim(), "/etc/ssl/own.pem");
    });
}

/// Whoever ends has the directory alone for a moment, and a loaded machine makes it long.
#[test]
fn a_start_waits_for_the_exclusive_lock_of_the_layers() {
    each_user(|world| {
        furnish(world);
        world.passes(&["--level", "full"], &["sh", "-c", "echo own > ~/.npm/own"]);
        let caches = world.home().join(".local/state/stockade/caches");
        let locks =
            fs::read_dir(&caches).unwrap().filter_map(|entry| fs::File::open(entry.unwrap().path().join("lock")).ok());
        let lock = locks.last().unwrap();
        lock.lock().unwrap();
        std::thread::scope(|scope| {
            let run = scope
                .spawn(|| world.passes(&["--level", "full"], &["sh", "-c", "cat ~/.npm/own && echo a > ~/.npm/own"]));
            std::thread::sleep(Duration::from_millis(700));
            assert!(!run.is_finished());
            lock.unlock().unwrap();
            assert_eq!(run.join().unwrap().stdout, "own\n");
        });
    });
}

/// How a script finds the private directories of its workspace.
const PLAIN: &str = "P=${UV_CACHE_DIR%/*}; ";

/// What lies at the names of layers that runs know.
fn unsealed(world: &World) -> Vec<std::path::PathBuf> {
    let caches = world.home().join(".local/state/stockade/caches");
    let homes = fs::read_dir(caches).unwrap().flatten().map(|entry| entry.path());
    let known = homes.flat_map(|home| ["plain", "merged"].map(|name| home.join(name)));
    known.filter(|path| path.symlink_metadata().is_ok()).collect()
}

#[test]
fn layers_are_sealed_when_a_run_has_ended() {
    each_user(|world| {
        furnish(world);
        for level in LEVELS {
            for _ in 0..5 {
                passes(world, &["--level", level], "echo x > \"$UV_CACHE_DIR/x\"");
                assert_eq!(unsealed(world), Vec::<std::path::PathBuf>::new(), "{level}");
            }
        }
    });
}

#[test]
fn a_run_cannot_keep_its_layers_from_being_sealed() {
    each_user(|world| {
        furnish(world);
        for level in LEVELS {
            for harm in [
                "rm -rf $P/*; chmod 0500 $P",
                "rm -rf $P/uv; touch $P/uv",
                "rm -rf $P/uv; ln -s /etc $P/uv",
                "chmod 0 $P/uv $P",
                "chmod 0500 ~/.npm ~/.cargo/registry 2>/dev/null || :",
            ] {
                passes(world, &["--level", level], &format!("{PLAIN}{harm}"));
                let next = "test -n \"$UV_CACHE_DIR\"; echo x > \"$UV_CACHE_DIR/x\"";
                passes(world, &["--level", level], next);
                assert_eq!(unsealed(world), Vec::<std::path::PathBuf>::new(), "{level}: {harm}");
            }
        }
    });
}

/// Neither by listing, nor by what it opened while they were in use.
#[test]
fn a_run_of_another_workspace_learns_no_sealed_name() {
    each_user(|world| {
        furnish(world);
        for level in LEVELS {
            let plant = format!("{PLAIN}echo planted > $P/marker; echo $P > plain; touch started; sleep 2");
            let other = world.dir("other").display().to_string();
            let first = world.workspace().join("started");
            std::thread::scope(|scope| {
                let planting = scope.spawn(|| passes(world, &["--level", level], &plant));
                while !first.exists() && !planting.is_finished() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let plain = world.workspace().join("plain").display().to_string();
                let look = format!(
                    "exec 3< \"$(cat {plain})\"; sleep 4; n=0; for d in ~/.local/state/stockade/caches/*/plain.* \
                     \"$(readlink /proc/self/fd/3)\"; do n=$((n+1)); ln -sfn \"$d\" {other}/lib$n || :; done"
                );
                passes(world, &["--level", "restricted", "--workspace", &other], &look);
                planting.join().unwrap();
            });
            fs::remove_file(&first).unwrap();
            for entry in fs::read_dir(&other).unwrap().flatten() {
                assert!(!entry.path().join("marker").exists(), "{level}: {:?}", fs::read_link(entry.path()));
            }
        }
    });
}

/// At level restricted it is the host's: a link to it would lead a tool of the host there.
#[test]
fn the_temporary_directory_is_removed_with_its_run_in_any_case() {
    each_user(|world| {
        for close in ["chmod -R a-w $TMPDIR", "chmod 0 $TMPDIR/x $TMPDIR", "chmod 0 $TMPDIR/x/y"] {
            let script = format!("mkdir -p $TMPDIR/x/y; echo a > $TMPDIR/x/y/z; echo $TMPDIR > temp; {close}");
            passes(world, &["--level", "restricted"], &script);
            let temp = fs::read_to_string(world.workspace().join("temp")).unwrap();
            assert!(temp.contains("stockade-"), "{temp}");
            assert!(Path::new(temp.trim()).symlink_metadata().is_err(), "{close}");
        }
    });
}

#[test]
fn caches_are_cleared_where_nothing_runs() {
    each_user(|world| {
        furnish(world);
        let workspace = world.workspace().display().to_string();
        world.passes(
            &["--level", "full"],
            &["sh", "-c", "seq 1 60000 > ~/.npm/big; mkdir -p ~/.npm/a/b; chmod 0 ~/.npm/a"],
        );
        let listed = cache(world, &["list", "--json"]);
        let line: Value = serde_json::from_str(listed.stdout.trim()).unwrap();
        assert_eq!(line["workspace"], workspace.as_str());
        assert!(line["tools"]["npm"].as_u64().unwrap() >= 300_000, "{line}");
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                world.passes(&["--level", "full"], &["sh", "-c", "touch started; sleep 3; cat ~/.npm/big | wc -c"])
            });
            let started = world.workspace().join("started");
            while !started.exists() && !run.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let refused = cache(world, &["clear", &workspace]);
            assert_eq!(refused.ended, ProgramEnd::Code(1), "{}", refused.stderr);
            assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
            assert!(run.join().unwrap().stdout.contains("348894"));
        });
        let cleared = cache(world, &["clear", &workspace, "--json"]);
        assert_eq!(cleared.ended, ProgramEnd::Code(0), "{}", cleared.stderr);
        assert!(cleared.stdout.contains("\"removed\""), "{}", cleared.stdout);
        assert_eq!(cache(world, &["list", "--json"]).stdout, "");
        world.passes(&["--level", "full"], &["sh", "-c", "test ! -e ~/.npm/big"]);
        assert_eq!(cache(world, &["clear", "--over", "1KiB"]).ended, ProgramEnd::Code(0));
        // Another directory at the path of the workspace is another workspace.
        world.passes(&["--level", "full"], &["sh", "-c", "echo > ~/.npm/own"]);
        assert!(!cache(world, &["list"]).stdout.contains("workspace deleted"));
        fs::rename(&workspace, format!("{workspace}-before")).unwrap();
        world.dir("ws");
        assert!(cache(world, &["list"]).stdout.contains("workspace deleted"));
        let cleared = cache(world, &["clear", "--over", "1TiB"]);
        assert!(cleared.stdout.contains("removed"), "{}", cleared.stdout);
        assert_eq!(cache(world, &["list", "--json"]).stdout, "");
    });
}

#[test]
fn caches_can_be_left_out() {
    each_user(|world| {
        furnish(world);
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        world.file("home/.config/stockade/config.toml", "[profiles.workspace]\ncaches = false\n");
        world.passes(&[], &["sh", "-c", "! touch ~/.npm/x; test -z \"$UV_CACHE_DIR\""]);
        assert!(!world.home().join(".local/state/stockade/caches").exists());
    });
}
