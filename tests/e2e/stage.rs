//! Staged runs at a terminal: what is repeated with a grant begins with nothing
//! of the attempt before, and what is asked about while it runs is staged too.

use std::fs;

use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

/// `stockade` with these arguments, in the workspace; it must end well.
#[track_caller]
pub fn stockade(world: &World, args: &[&str]) -> String {
    let program = binary();
    let argv: Vec<&str> = std::iter::once(program.as_str()).chain(args.iter().copied()).collect();
    let output = world.run(&world.bare(&argv));
    assert_eq!(output.ended, stockade_testkit::ProgramEnd::Code(0), "{args:?}: {}", output.combined_text());
    output.stdout
}

/// Runs `script` staged at a terminal and says yes to every question: the text
/// and how many questions there were.
fn agreed(world: &World, script: &str) -> (String, usize) {
    let program = binary();
    let command = world.bare(&[program.as_str(), "run", "--stage", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(world, &command);
    let mut questions = 0;
    while terminal.sees_before_its_end("allow?", std::time::Duration::from_secs(60)) {
        terminal.press("o");
        questions += 1;
    }
    let (code, text) = terminal.finish();
    assert_eq!(code, 0, "{text}");
    (text, questions)
}

#[test]
fn a_run_that_is_repeated_begins_with_an_empty_stage() {
    each_user(|world| {
        world.file("home/.netrc", "machine example.org\n");
        world.file("ws/log", "before\n");
        // Hidden, so nothing can be held: it is asked about after the end.
        let (text, questions) = agreed(world, "echo ran >> log; mkdir made; grep machine ~/.netrc");
        assert_eq!(questions, 1, "{text}");
        assert!(text.contains("machine example.org"), "{text}");
        assert_eq!(fs::read_to_string(world.workspace().join("log")).unwrap(), "before\n", "{text}");
        assert_eq!(stockade(world, &["stage", "list"]).lines().count(), 1, "{text}");
        stockade(world, &["stage", "commit"]);
        assert_eq!(fs::read_to_string(world.workspace().join("log")).unwrap(), "before\nran\n", "{text}");
        assert!(world.workspace().join("made").is_dir());
    });
}

#[test]
fn a_program_that_is_asked_about_is_one_in_the_stage_too() {
    each_user(|world| {
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        world.file("home/.config/stockade/config.toml", "[profiles.workspace.exec]\nask = [\"tool\"]\n");
        // Made by the run itself: there is none outside of the stage.
        let script = "printf '#!/bin/sh\\necho it ran > result\\n' > tool; chmod 755 tool; ./tool; cat result";
        let (text, questions) = agreed(world, script);
        assert_eq!(questions, 1, "{text}");
        assert!(text.contains("exec ") && text.contains("/tool"), "{text}");
        assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 0, "{text}");
        stockade(world, &["stage", "commit"]);
        assert_eq!(fs::read_to_string(world.workspace().join("result")).unwrap(), "it ran\n");
    });
}

#[test]
fn a_filesystem_without_attributes_is_refused_for_stages() {
    each_user(|world| {
        let state = world.dir("home/state").display().to_string();
        let show = format!("mount -t ramfs none {state} && chmod 700 {state} && exec \"$@\"");
        let within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &show, "sh"];
        let run = |options: &[&str]| {
            let command = world.stockade(options, &["touch", "made"]).env("XDG_STATE_HOME", &state);
            world.run(&command.with_prefix(within))
        };
        let refused = run(&["--stage"]);
        assert!(refused.stderr.contains("without extended attributes"), "{}", refused.combined_text());
        assert!(refused.stderr.contains("hint: set XDG_STATE_HOME"), "{}", refused.combined_text());
        assert!(!world.workspace().join("made").exists(), "{}", refused.combined_text());
        let unstaged = run(&[]);
        assert_eq!(unstaged.ended, stockade_testkit::ProgramEnd::Code(0), "{}", unstaged.combined_text());
        assert!(world.workspace().join("made").exists());
    });
}
