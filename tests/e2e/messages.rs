//! What a person reads where something is not as it was meant: the message, the
//! hint, and the exit code beside it.

use std::fs;

use stockade_testkit::{ProgramEnd, ProgramOutput, TestCommand};

use crate::detached::{attach, detach, logs, stockade, waited};
use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

#[track_caller]
fn says(output: &ProgramOutput, code: i32, texts: &[&str]) {
    assert_eq!(output.ended, ProgramEnd::Code(code), "{}", output.combined_text());
    for text in texts {
        assert!(output.stderr.contains(text), "`{text}` is not said: {}", output.combined_text());
    }
}

/// `stockade run` of a script in the workspace, asked about at a terminal.
fn build_run_command(world: &World, options: &[&str], argv: &[&str]) -> TestCommand {
    let workspace = world.workspace().display().to_string();
    let program = binary();
    world.bare(&[&[program.as_str(), "run", "--workspace", &workspace], options, &["--"], argv].concat())
}

#[test]
fn a_program_that_cannot_be_executed_is_named_detached_or_not() {
    each_user(|world| {
        let script = world.file("ws/script", "#!/nowhere/sh\n");
        fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for (program, code) in [("nosuch", 127), ("./nosuch", 127), ("./script", 127), ("/etc", 126)] {
            for options in [&[][..], &["--detach"]] {
                let output = world.run(&world.stockade(options, &[program]));
                says(&output, code, &[&format!("the program `{program}` ")]);
                assert_eq!(output.stdout, "", "no id of what never ran");
            }
        }
        assert_eq!(stockade(world, &["ps", "--all"]).stdout, "");
    });
}

#[test]
fn an_unknown_profile_is_a_mistake_of_the_command_line() {
    let world = World::new(stockade_testkit::TestUser::available_users()[0]);
    for options in [&["--profile", "nope"][..], &["--detach", "--profile", "nope"]] {
        says(
            &world.run(&world.stockade(options, &["true"])),
            125,
            &["no profile `nope`", "`read-only`, `strict`, `workspace`"],
        );
    }
    says(&stockade(&world, &["check", "--profile", "nope", "--", "true"]), 125, &["no profile `nope`"]);
}

/// A mount of the file would make its name one that nobody can remove. (Without `-f`,
/// `rm` and `mv` at a terminal look at access(2) first, which a read-only mount refuses.)
#[test]
fn a_granted_file_can_be_removed_and_replaced() {
    each_user(|world| {
        let file = world.outside().join("main");
        world.file("out/main", "old");
        world.file("ws/main", "new");
        world.file("ws/install.sh", "install main \"$1\" && rm -f \"$1\" && cp main \"$1\" && mv -f main \"$1\"\n");
        let shown = file.display().to_string();
        for answer in [Some("a"), None] {
            world.file("ws/main", "new");
            let mut terminal = Terminal::start(world, &build_run_command(world, &[], &["sh", "install.sh", &shown]));
            if let Some(key) = answer {
                terminal.expect("allow?");
                terminal.press(key);
            }
            let (code, text) = terminal.finish();
            assert_eq!(code, 0, "{text}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        }
    });
}

/// What a program does with its history is no reason to start it again.
#[test]
fn no_question_follows_a_history_or_work_that_is_done() {
    let credential = "cat ~/.netrc >/dev/null; exit 3";
    each_user(|world| {
        world.file("home/.bash_history", "old\n");
        world.file("home/.netrc", "machine h login u password p\n");
        let write = format!("date > made; {credential}");
        let quiet = [
            ("cat ~/.bash_history; echo x > ~/.bash_history-1.tmp; exit 6", 6, "not kept: "),
            ("cat ~/.netrc; exit 0", 0, "refused: read "),
            (write.as_str(), 3, "refused: read "),
        ];
        for (script, expected_code, expected_text) in quiet {
            let (code, text) = Terminal::start(world, &build_run_command(world, &[], &["sh", "-c", script])).finish();
            assert_eq!(code, expected_code, "{text}");
            assert!(text.contains(expected_text) && !text.contains("allow?"), "{text}");
        }
        // A command that failed without effects may run again; its code stays after a no.
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], &["sh", "-c", credential]));
        terminal.expect("allow?");
        terminal.press("q");
        let (code, text) = terminal.finish();
        assert_eq!(code, 3, "{text}");
        // One that a person typed to does not.
        let mut terminal =
            Terminal::start(world, &build_run_command(world, &[], &["sh", "-c", "read x; cat ~/.netrc; exit 3"]));
        std::thread::sleep(std::time::Duration::from_millis(500));
        terminal.press("x\r");
        let (code, text) = terminal.finish();
        assert_eq!(code, 3, "{text}");
        assert!(!text.contains("allow?"), "{text}");
    });
}

/// A hidden file of the workspace fails to open: an empty one would be committed.
#[test]
fn a_hidden_file_of_the_workspace_is_never_taken_for_an_empty_one() {
    each_user(|world| {
        world.file("ws/.env", "API=1\n");
        world.file("ws/plain", "x\n");
        let config = world.home().join(".config/stockade");
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        fs::write(config.join("config.toml"), "[profiles.workspace]\nhide = [\"./.env\"]\n").unwrap();
        let git = "git init -q . && git add -f .env plain && git -c user.name=u -c user.email=e@x commit -qm one";
        assert_eq!(world.run(&world.bare(&["sh", "-c", git])).ended, ProgramEnd::Code(0));
        let output = world.run(&world.stockade(&[], &["cat", ".env"]));
        says(&output, 1, &["Permission denied"]);
        let grant = format!("write {}", world.workspace().join(".git").display());
        let commit = ["git", "-c", "user.name=u", "-c", "user.email=e@x", "commit", "-qam", "two"];
        says(&world.run(&world.stockade(&["--grant", &grant], &commit)), 128, &["Permission denied"]);
        let show_output = world.run(&world.bare(&["git", "show", "HEAD:.env"]));
        assert_eq!(show_output.stdout, "API=1\n", "{}", show_output.combined_text());

        let copied = stockade(world, &["sandbox", "create", "--copy", "."]);
        says(&copied, 0, &["left out: .env (it is hidden from runs)"]);
        let id = copied.stdout.trim();
        assert_eq!(stockade(world, &["sandbox", "exec", id, "--", "ls", "-A"]).stdout, ".git\nplain\n");
        assert_eq!(stockade(world, &["sandbox", "destroy", id]).ended, ProgramEnd::Code(0));
    });
}

#[test]
fn a_mistake_of_the_command_line_is_answered_by_its_own_command() {
    let world = World::new(stockade_testkit::TestUser::available_users()[0]);
    for (line, expected_text) in [
        (&["sandbox", "rm", "x"][..], "`stockade sandbox destroy` does that"),
        (&["approvals", "forget", "x"], "`stockade approvals revoke` does that"),
        (&["sandbox", "show", "bad"], "see stockade sandbox show --help"),
        (&["run", "--limit", "memory=1", "--", "true"], "at least memory=1MiB"),
        (&["audit", "query", "--type", "nonsense"], "the types are requested, "),
    ] {
        says(&stockade(&world, line), 125, &[expected_text]);
    }
    says(&stockade(&world, &["policy", "fmt"]), 0, &["no configuration file"]);
    world.file("home/.local", "no directory");
    says(&stockade(&world, &["approvals", "list"]), 125, &["cannot"]);
}

#[test]
fn a_remembered_answer_is_reported_as_one() {
    each_user(|world| {
        for (key, first, then) in
            [("N", "refused: create ", "(you answered never on "), ("a", "(always)", "(remembered: always)")]
        {
            let world = &World::new(world.account.user);
            let command = build_run_command(world, &[], &["sh", "-c", "echo x >> ~/outside"]);
            let mut terminal = Terminal::start(world, &command);
            terminal.expect("allow?");
            terminal.press(key);
            let (_, text) = terminal.finish();
            assert!(text.contains(first) && !text.contains(then), "{text}");
            let (_, text) = Terminal::start(world, &command).finish();
            assert!(text.contains(then) && !text.contains("allow?"), "{text}");
            assert_eq!(text.contains(" stockade approvals revoke apr_"), key == "N", "{text}");
        }
    });
}

#[test]
fn ctrl_c_at_a_question_of_an_attached_run_leaves_it() {
    each_user(|world| {
        let id = detach(world, &["--mode", "on-failure"], "sleep 1; echo x >> ~/outside; echo end");
        let mut terminal = attach(world, &[], &id);
        terminal.expect("allow?");
        terminal.press("\u{3}");
        terminal.expect("continues");
        assert_eq!(terminal.finish().0, 0);
        // The question goes with the last who could answer; the run goes on.
        assert_eq!(waited(world, &id), ProgramEnd::Code(0));
        assert!(logs(world, &id).contains("end"));
        assert!(!world.home().join("outside").exists());
    });
}
