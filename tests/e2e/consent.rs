//! A person is asked for exactly the missing power, and the run has exactly that
//! from then on.

use std::fs;
use std::time::Duration;

use stockade_testkit::TestCommand;

use crate::terminal::Terminal;
use crate::world::{World, binary, each_user};

const SCRIPT: &str = "echo x >> ~/outside";

fn build_run_command(world: &World, options: &[&str], script: &str) -> TestCommand {
    let workspace = world.workspace().display().to_string();
    let program = binary();
    let mut all = vec![program.as_str(), "run", "--workspace", &workspace];
    all.extend(options);
    all.extend(["--", "sh", "-c", script]);
    world.bare(&all)
}

/// `touch` of a file beyond the workspace.
fn touches(world: &World) -> TestCommand {
    let workspace = world.workspace().display().to_string();
    let object = world.home().join("outside").display().to_string();
    world.bare(&[&binary(), "run", "--workspace", &workspace, "--", "touch", &object])
}

fn outside(world: &World) -> Option<String> {
    fs::read_to_string(world.home().join("outside")).ok()
}

#[test]
fn yes_adds_exactly_that_grant() {
    each_user(|world| {
        let report = world.home().join("outcome.json").display().to_string();
        let mut terminal = Terminal::start(world, &build_run_command(world, &[&format!("--json={report}")], SCRIPT));
        let object = world.home().join("outside").display().to_string();
        terminal.expect(&object);
        terminal.expect("allow?");
        terminal.press("o");
        let (code, text) = terminal.finish();
        assert_eq!(code, 0, "{text}");
        assert_eq!(outside(world).as_deref(), Some("x\n"), "run once with the power, not twice: {text}");
        let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
        let grant = format!("write {object}");
        // In place: the call was held, and nothing ran again.
        assert_eq!(outcome["attempts"].as_array().unwrap().len(), 1, "{text}");
        assert_eq!(outcome["attempts"][0]["grants"], serde_json::json!([grant]));
        assert_eq!(outcome["attempts"][0]["denials"][0]["resolution"], "granted");
        assert_eq!(outcome["approvals"][0]["by"], "terminal");
        // Once is once.
        let second_terminal = Terminal::start(world, &build_run_command(world, &[], SCRIPT));
        let mut second_terminal = second_terminal;
        second_terminal.expect("allow?");
        second_terminal.press("n");
        second_terminal.finish();
        assert_eq!(outside(world).as_deref(), Some("x\n"));
    });
}

#[test]
fn no_leaves_the_exit_code_and_the_file_alone() {
    each_user(|world| {
        for (keys, status) in [("n", "exited"), ("N", "exited"), ("q", "aborted")] {
            let world = &World::new(world.account.user);
            let report = world.home().join("outcome.json").display().to_string();
            let mut terminal =
                Terminal::start(world, &build_run_command(world, &[&format!("--json={report}")], SCRIPT));
            terminal.expect("allow?");
            terminal.press(keys);
            let (code, text) = terminal.finish();
            let outcome: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
            assert_eq!(outcome["status"], status, "{text}");
            if keys != "q" {
                assert_eq!(code, 2, "the shell's own exit code: {text}");
                assert_eq!(outcome["exit_code"], 2);
            }
            assert_eq!(outcome["attempts"].as_array().unwrap().len(), 1);
            assert_eq!(outcome["attempts"][0]["denials"][0]["resolution"], "refused");
            assert_eq!(outside(world), None);
        }
    });
}

/// The control is a file beside it, which is asked about and written.
#[test]
fn policy_files_are_refused_without_a_question() {
    each_user(|world| {
        world.dir("home/.config");
        let own = world.dir("home/.config/stockade").join("config.toml");
        let other = world.home().join(".config/other.toml");
        for level in ["full", "restricted"] {
            for (object, is_asked) in [(&other, true), (&own, false)] {
                // Not in the text of the command, which would be asked about by itself.
                world.file("ws/write.sh", &format!("echo '# x' > {}\n", object.display()));
                let mut terminal =
                    Terminal::start(world, &build_run_command(world, &["--level", level], "sh ./write.sh"));
                if is_asked {
                    terminal.expect("allow?");
                    terminal.press("o");
                }
                let (code, text) = terminal.finish();
                assert_eq!(code == 0, is_asked, "{level}: {text}");
                assert_eq!(text.contains("allow?"), is_asked, "{level}: {text}");
                assert_eq!(object.exists(), is_asked, "{level}: {text}");
                let _ = fs::remove_file(object);
                // Where nobody can be asked, no grant is offered that would be refused.
                let refusal_text =
                    world.run(&world.stockade(&["--level", level], &["sh", "./write.sh"])).combined_text();
                assert!(refusal_text.contains("refused: "), "{level}: {refusal_text}");
                assert_eq!(refusal_text.contains("hint: --request"), is_asked, "{level}: {refusal_text}");
                assert_eq!(refusal_text.contains("is Stockade's own"), !is_asked, "{level}: {refusal_text}");
            }
        }
    });
}

#[test]
fn the_session_remembers() {
    each_user(|world| {
        let session = ["--session", "ses_work"];
        let mut first = Terminal::start(world, &build_run_command(world, &session, SCRIPT));
        first.expect("allow?");
        first.press("s");
        let (code, text) = first.finish();
        assert_eq!(code, 0, "{text}");
        let second = Terminal::start(world, &build_run_command(world, &session, SCRIPT));
        let (code, text) = second.finish();
        assert_eq!(code, 0, "{text}");
        assert!(!text.contains("allow?"), "asked again: {text}");
        assert_eq!(outside(world).as_deref(), Some("x\nx\n"));
        // Another session is another conversation.
        let mut other = Terminal::start(world, &build_run_command(world, &["--session", "ses_other"], SCRIPT));
        other.expect("allow?");
        other.press("n");
        other.finish();
        assert_eq!(outside(world).as_deref(), Some("x\nx\n"));
    });
}

#[test]
fn keys_pressed_too_early_do_not_count() {
    each_user(|world| {
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], "sleep 0.4; echo x >> ~/outside"));
        terminal.press("oooo");
        terminal.expect("allow?");
        terminal.press("n");
        let (_, text) = terminal.finish();
        assert_eq!(outside(world), None, "{text}");
    });
}

#[test]
fn shown_text_cannot_be_disguised() {
    each_user(|world| {
        let hidden = "echo x >> ~/outside #\u{202e}\u{1b}[2J\u{200b}";
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], hidden));
        terminal.expect("allow?");
        terminal.press("n");
        let (_, text) = terminal.finish();
        assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{202e}') && !text.contains('\u{200b}'), "{text:?}");
        assert!(text.contains("\\u{202e}") && text.contains("\\u{1b}[2J"), "{text}");
    });
}

/// An approval of a sandboxed run is none for an unsandboxed one (L1).
#[test]
fn consent_never_removes_the_sandbox() {
    each_user(|world| {
        let mut first = Terminal::start(world, &build_run_command(world, &["--session", "ses_work"], SCRIPT));
        first.expect("allow?");
        first.press("s");
        first.finish();
        fs::remove_file(world.home().join("outside")).unwrap();
        for options in [["--profile", "host"], ["--sandbox", "forbid"]] {
            let mut all = vec!["--session", "ses_work", "--mode", "never"];
            all.extend(options);
            let output = world.run(&build_run_command(world, &all, SCRIPT));
            assert_eq!(output.ended, stockade_testkit::ProgramEnd::Code(126), "{}", output.combined_text());
            assert_eq!(outside(world), None);
        }
    });
}

/// The picture in the README and the transcript in the guide are one real run.
#[test]
fn the_readme_shows_the_truth() {
    let world = World::new(*stockade_testkit::TestUser::available_users().last().unwrap());
    // The first run of all says more, once.
    Terminal::start(&world, &build_run_command(&world, &[], "true")).finish();
    let mut terminal = Terminal::start(&world, &build_run_command(&world, &[], SCRIPT));
    // Paths are longer here, by whose home it is: no line may be folded for that.
    terminal.resize(40, 140);
    terminal.expect("allow?");
    terminal.press("o");
    let (code, text) = terminal.finish();
    assert_eq!(code, 0, "{text}");
    assert_eq!(outside(&world).as_deref(), Some("x\n"));
    let top = world.home().parent().unwrap().display().to_string();
    let shown: String = text
        .replace(&format!("{top}/home"), "/home/dev")
        .replace(&format!("{top}/ws"), "/home/dev/project")
        .lines()
        .map(|l| l.trim_end().to_owned() + "\n")
        .collect();
    let typed = format!("stockade run -- sh -c '{SCRIPT}'");
    let session = format!("$ {typed}\n{}", shown.trim_start_matches('\n'));

    let readme = fs::read_to_string(repository_file("README.md")).unwrap();
    assert!(readme.contains("](docs/question.svg)"), "the README shows the picture");
    let title = "A terminal: a command wants to write a file outside the workspace. Stockade asks, \
                 the user presses o, and the write continues.";
    // Bold text is what the user typed.
    let bold = |text: &str| format!("\x1b[1m{text}\x1b[22m");
    let picture = session.replacen(&typed, &bold(&typed), 1).replacen("> o\n", &format!("> {}\n", bold("o")), 1);
    check_document("docs/question.svg", &crate::picture::draw_terminal(title, &picture));

    let guide = fs::read_to_string(repository_file("docs/guide.md")).unwrap();
    let (begin, end) = ("<!-- transcript: made by a test -->\n", "<!-- end of transcript -->");
    let from = guide.find(begin).expect("docs/guide.md holds the transcript's marks") + begin.len();
    let to = guide.find(end).unwrap();
    let transcript = crate::picture::remove_styles(&session);
    check_document("docs/guide.md", &format!("{}```console\n{transcript}```\n{}", &guide[..from], &guide[to..]));
}

fn repository_file(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Compares a document with its content as it is now, or writes it with `STOCKADE_BLESS`.
fn check_document(name: &str, content: &str) {
    let path = repository_file(name);
    if std::env::var_os("STOCKADE_BLESS").is_some() {
        fs::write(path, content).unwrap();
        return;
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(committed, content, "{name} is out of date: run with STOCKADE_BLESS=1");
}

/// With no policy configured the built-in policy applies, and that is said once, to a
/// person.
#[test]
fn the_built_in_policy_is_announced_once() {
    const NOTICE: &str = "no policy is configured: the built-in policy applies";
    each_user(|world| {
        let run = || build_run_command(world, &[], "true");
        assert!(!world.run(&run()).combined_text().contains(NOTICE), "not into what a program reads");
        let (_, first) = Terminal::start(world, &run()).finish();
        let (_, second) = Terminal::start(world, &run()).finish();
        assert!(first.contains(NOTICE) && !second.contains(NOTICE), "{first}\n{second}");
        let world = &World::new(world.account.user);
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        world.file("home/.config/stockade/config.toml", "level = \"full\"\n");
        let (_, configured) = Terminal::start(world, &build_run_command(world, &[], "true")).finish();
        assert!(!configured.contains(NOTICE), "{configured}");
    });
}

/// The rule stands there before it is agreed to; the rest of the file stays as it
/// is; the next run asks nobody.
#[test]
fn always_writes_the_rule_that_was_shown() {
    each_user(|world| {
        world.dir("home/.config");
        world.dir("home/.config/stockade");
        let before = "# mine\nlevel   =   \"full\"   # as it is\n";
        let file = world.file("home/.config/stockade/config.toml", before);
        let object = world.home().join("outside").display().to_string();
        let rule = format!("glob = [\"touch {object}\"]");

        let mut terminal = Terminal::start(world, &touches(world));
        terminal.expect("allow?");
        terminal.press("a");
        terminal.expect(&rule);
        terminal.expect("[w]rite it");
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "shown before it is written");
        terminal.press("x");
        terminal.expect("nothing chosen");
        terminal.press("a");
        terminal.expect("[w]rite it");
        terminal.press("w");
        let (code, text) = terminal.finish();
        assert!(code == 0 && text.contains("written as a rule to"), "{text}");
        let after = fs::read_to_string(&file).unwrap();
        let added = after.strip_prefix(before).expect("comments and layout stay");
        for part in [rule.as_str(), &format!("grants = [\"write {object}\"]"), "effect = \"allow\"", "request = \"req_"]
        {
            assert!(added.contains(part), "{part}: {added}");
        }

        fs::remove_file(&object).unwrap();
        let (code, text) = Terminal::start(world, &touches(world)).finish();
        assert!(code == 0 && !text.contains("allow?"), "{text}");
        assert_eq!(outside(world).as_deref(), Some(""));
        // The rule that was shown is about this command: another one is asked about.
        let mut other = Terminal::start(world, &build_run_command(world, &[], SCRIPT));
        other.expect("allow?");
        other.press("n");
        other.finish();
        assert_eq!(outside(world).as_deref(), Some(""));
    });
}

/// A remembered power reaches every command of the workspace, and the question, its help
/// and the list of answers say so.
#[test]
fn a_remembered_power_states_its_scope() {
    const REACH: &str = "for any command in this workspace";
    each_user(|world| {
        let object = world.home().join("outside").display().to_string();
        let mut terminal = Terminal::start(world, &touches(world));
        terminal.expect(&format!("reach    always is {REACH}"));
        terminal.expect("allow?");
        terminal.press("?");
        terminal.expect(&format!("a  yes, and {REACH} from now on"));
        terminal.expect("allow?");
        terminal.press("a");
        terminal.expect(&format!("[r]emember the answer {REACH}"));
        terminal.press("r");
        let (code, text) = terminal.finish();
        assert_eq!(code, 0, "{text}");
        let (code, text) = Terminal::start(world, &build_run_command(world, &[], SCRIPT)).finish();
        assert!(code == 0 && !text.contains("allow?"), "{text}");
        assert_eq!(outside(world).as_deref(), Some("x\n"), "it does reach so far");
        let list = world.run(&world.bare(&[&binary(), "approvals", "list"]));
        let id = list.stdout.split_whitespace().next().unwrap_or_default().to_owned();
        let shown = world.run(&world.bare(&[&binary(), "approvals", "show", &id])).stdout;
        assert!(shown.contains("for       any command in the workspace"), "{shown}");
        assert!(shown.contains(&format!("write {object}")), "{shown}");

        // With a session, and in its scope.
        let world = &World::new(world.account.user);
        let mut terminal = Terminal::start(world, &build_run_command(world, &["--session", "ses_work"], SCRIPT));
        terminal.expect(&format!("reach    session and always are {REACH}"));
        terminal.expect("allow?");
        terminal.press("o");
        terminal.finish();
        // A yes to running a command is for that command, and says no more.
        let mut terminal = Terminal::start(world, &build_run_command(world, &["--mode", "untrusted"], "touch inside"));
        terminal.expect("may this command run");
        terminal.expect("allow?");
        terminal.press("?");
        terminal.expect("a  yes, and for this same command from now on");
        terminal.expect("allow?");
        terminal.press("n");
        let (_, text) = terminal.finish();
        assert!(!text.contains("reach "), "{text}");
    });
}

/// A kept yes to running a command is for the files that it runs, and one to a power for the
/// very directory where it was given; where it cannot be told what runs none is kept.
#[test]
fn a_remembered_approval_ends_with_its_scope() {
    each_user(|world| {
        // Whether it is asked about, and what was shown.
        let run = |command: &TestCommand, keys: &[&str]| {
            let mut terminal = Terminal::start(world, command);
            let is_asked = terminal.sees_before_its_end("allow?", Duration::from_secs(20));
            for key in keys.iter().filter(|_| is_asked) {
                terminal.press(key);
            }
            (is_asked, terminal.finish().1)
        };
        let untrusted = |argv: &[&str]| world.stockade(&["--mode", "untrusted"], argv);
        let wrapped = untrusted(&["timeout", "5", "bash", "x.sh"]);
        world.file("ws/x.sh", "echo one\n");
        let (is_asked, text) = run(&wrapped, &["a"]);
        assert!(is_asked && text.contains("[a]lways"), "{text}");
        let (is_asked, text) = run(&wrapped, &["n"]);
        assert!(!is_asked && text.contains("one"), "the control: {text}");
        world.file("ws/x.sh", "echo two\n");
        let (is_asked, text) = run(&wrapped, &["n"]);
        assert!(is_asked, "{text}");

        for argv in [&["sh", "-c", "cd . && ./x.sh"][..], &["env", "-C", ".", "bash", "x.sh"]] {
            let (is_asked, text) = run(&untrusted(argv), &["n"]);
            assert!(is_asked && !text.contains("[a]lways"), "{argv:?}: {text}");
        }

        let (is_asked, text) = run(&touches(world), &["a", "r"]);
        assert!(is_asked && text.contains("[r]emember"), "{text}");
        let (is_asked, text) = run(&touches(world), &["n"]);
        assert!(!is_asked, "the control: {text}");
        fs::remove_file(world.home().join("outside")).unwrap();
        fs::rename(world.workspace(), world.home().join("aside")).unwrap();
        world.dir("ws");
        let (is_asked, text) = run(&touches(world), &["n"]);
        assert!(is_asked, "{text}");
        assert_eq!(outside(world), None);
    });
}

/// Credentials and parts of the system are agreed to one time only.
#[test]
fn answers_about_guarded_paths_are_never_remembered() {
    each_user(|world| {
        let file = world.home().join(".ssh/known_hosts");
        world.dir("home/.ssh");
        let power = format!("read {}", file.display());
        let workspace = world.workspace().display().to_string();
        let program = binary();
        let run = |power: &str| {
            world.bare(&[
                &program,
                "run",
                "--workspace",
                &workspace,
                "--session",
                "ses_w",
                "--request",
                power,
                "--",
                "true",
            ])
        };
        for (power, is_kept) in [(power.as_str(), false), ("write /etc/hosts.d", false), ("write /srv/x", true)] {
            let mut terminal = Terminal::start(world, &run(power));
            terminal.expect("allow?");
            terminal.press("n");
            let (_, text) = terminal.finish();
            assert_eq!(text.contains("[a]lways"), is_kept, "{power}: {text}");
            assert_eq!(text.contains("[s]ession"), is_kept, "{power}: {text}");
        }
    });
}

/// One line, however many blanks a name has.
#[test]
fn blanks_in_a_name_do_not_spread_a_question() {
    each_user(|world| {
        world.file("ws/write.sh", "echo x > \"$HOME/a$(printf '%200s' '')b\"\n");
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], "sh ./write.sh 2>/dev/null"));
        terminal.expect("a\\u{20}×200b");
        terminal.expect("allow?");
        terminal.press("n");
        let (_, text) = terminal.finish();
        assert!(!text.contains("     b"), "{text}");
    });
}

/// What runs others is remembered, and never a rule.
#[test]
fn always_for_an_interpreter_writes_no_rule() {
    each_user(|world| {
        let mut terminal = Terminal::start(world, &build_run_command(world, &[], SCRIPT));
        terminal.expect("allow?");
        terminal.press("a");
        let (code, text) = terminal.finish();
        assert!(code == 0 && !text.contains("[w]rite") && !text.contains("as a rule"), "{text}");
        assert!(!world.home().join(".config/stockade/config.toml").exists());
        let (code, text) = Terminal::start(world, &build_run_command(world, &[], SCRIPT)).finish();
        assert!(code == 0 && !text.contains("allow?"), "{text}");
        assert_eq!(outside(world).as_deref(), Some("x\nx\n"));
    });
}
