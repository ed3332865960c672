//! What no sandbox contains is asked about wherever it shows: in the text of the command, and where
//! a script starts the program that does it. Whatever was granted: a yes to running a program is
//! none to publishing. Requests are attacked in `net`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use stockade_testkit::TestCommand;

use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

/// A program that is called as one that publishes, and leaves a trace where it runs.
fn publisher(world: &World) -> PathBuf {
    world.dir("ws/bin");
    let program = world.file("ws/bin/npm", "#!/bin/sh\necho \"$*\" >>\"${0%/bin/npm}/published\"\n");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    world.file("ws/release.sh", "./bin/npm run build && ./bin/npm publish && ./bin/npm publish --tag next\n");
    world.workspace().join("published")
}

fn build_run_command(world: &World, options: &[&str], command: &[&str]) -> TestCommand {
    let program = binary();
    let mut all = vec![program.as_str(), "run"];
    all.extend(options);
    all.push("--");
    all.extend(command);
    world.bare(&all)
}

fn lines(path: &PathBuf) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_program_that_a_script_starts_is_asked_about_once() {
    each_user(|world| {
        for (options, key, published) in [
            (&["--level", "full"][..], "o", 3),
            (&["--level", "restricted"], "o", 3),
            (&["--level", "full"], "n", 1),
            (&["--mode", "on-request"], "o", 3),
            (&["--grant", "exec ./bin/npm"], "n", 1),
        ] {
            let world = &World::new(world.account.user);
            let trace = publisher(world);
            let mut terminal = Terminal::start(world, &build_run_command(world, options, &["sh", "./release.sh"]));
            terminal.expect("npm publish");
            terminal.expect("Publishes a package");
            terminal.expect("allow?");
            terminal.press(key);
            let (code, text) = terminal.finish();
            assert_eq!(lines(&trace), published, "{options:?}: {text}");
            assert_eq!(code == 0, key == "o", "{options:?}: {text}");
            assert_eq!(text.matches("allow?").count(), 1, "{options:?}: {text}");
            assert!(!text.contains("[a]lways"), "a yes holds for this run alone: {text}");
        }
    });
}

#[test]
fn without_an_approver_it_is_refused_and_the_rest_continues() {
    each_user(|world| {
        for (options, has_terminal) in [
            (&["--mode", "on-failure"][..], false),
            (&["--mode", "never"], true),
            (&["--mode", "granular:filesystem"], true),
            (&["--mode", "on-failure", "--grant", "exec ./bin/npm"], false),
        ] {
            let world = &World::new(world.account.user);
            let trace = publisher(world);
            let command = build_run_command(world, options, &["sh", "./release.sh"]);
            let text = match has_terminal {
                true => Terminal::start(world, &command).finish().1,
                false => world.run(&command).combined_text(),
            };
            assert_eq!(lines(&trace), 1, "the build before it ran: {options:?}: {text}");
            assert!(text.contains("refused: execute") && text.contains("Publishes a package"), "{options:?}: {text}");
            assert!(text.contains("at a terminal"), "what to do: {options:?}: {text}");
            assert!(!text.contains("--request 'effect") && !text.contains("--grant 'effect"), "{text}");
        }
    });
}

#[test]
fn powers_shown_by_the_text_are_asked_about_once() {
    each_user(|world| {
        let trace = publisher(world);
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], &["sh", "-c", "./bin/npm publish"]));
        terminal.expect("may this command run");
        terminal.expect("allow?");
        terminal.press("o");
        let (code, text) = terminal.finish();
        assert_eq!((code, lines(&trace), text.matches("allow?").count()), (0, 1, 1), "{text}");
    });
}

#[test]
fn no_approval_beforehand() {
    each_user(|world| {
        for option in ["--grant", "--request"] {
            let text =
                world.run(&build_run_command(world, &[option, "effect publishes by npm"], &["true"])).combined_text();
            assert!(text.contains("is approved when its question is asked"), "{text}");
        }
    });
}

#[test]
fn a_hook_is_asked_about_once() {
    each_user(|world| {
        for (level, key) in [("full", "o"), ("full", "n"), ("restricted", "o")] {
            let world = &World::new(world.account.user);
            let made = world.run(&world.bare(&["git", "init", "-q", "."]));
            assert!(made.combined_text().is_empty(), "{}", made.combined_text());
            let script = "echo 'exit 0' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit";
            let mut terminal =
                Terminal::start(world, &build_run_command(world, &["--level", level], &["sh", "-c", script]));
            terminal.expect("Writes a file that runs or configures programs later");
            terminal.expect("allow?");
            terminal.press(key);
            let (code, text) = terminal.finish();
            assert_eq!(world.workspace().join(".git/hooks/pre-commit").exists(), key == "o", "{text}");
            assert_eq!(code == 0, key == "o", "{text}");
            assert_eq!(text.matches("allow?").count(), 1, "{text}");
        }
    });
}

#[test]
fn a_program_that_git_is_configured_to_start_is_asked_about_once() {
    each_user(|world| {
        for key in ["o", "n"] {
            let world = &World::new(world.account.user);
            let made = world.run(&world.bare(&["git", "init", "-q", "."]));
            assert!(made.combined_text().is_empty(), "{}", made.combined_text());
            let command = build_run_command(world, &[], &["git", "config", "core.editor", "./x"]);
            let mut terminal = Terminal::start(world, &command);
            terminal.expect("Sets a program that git starts");
            terminal.expect("allow?");
            terminal.press(key);
            let (code, text) = terminal.finish();
            let settings = fs::read_to_string(world.workspace().join(".git/config")).unwrap();
            assert_eq!(settings.contains("./x"), key == "o", "{text}\n{settings}");
            assert_eq!(code == 0, key == "o", "{text}");
            assert_eq!(text.matches("allow?").count(), 1, "{text}");
        }
    });
}
