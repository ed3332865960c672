//! What commands make of their standard input.

use stockade_model::RequestCommand;
use stockade_shell::{CommandContext, StdinUse, assess_script, is_understood, stdin_use};

fn context() -> CommandContext {
    CommandContext { cwd: "/w".into(), home: "/home/u".into(), workspace: "/w".into(), sanitized: false }
}

#[track_caller]
fn check(command: &str, expected: StdinUse) {
    let words = RequestCommand::Argv(command.split(' ').map(Into::into).collect());
    for command in [words, RequestCommand::Script(command.into())] {
        assert_eq!(stdin_use(&command, &context()), expected, "{command:?}");
    }
}

#[test]
fn shells_take_commands_and_interpreters_programs() {
    for command in ["sh", "bash", "/bin/bash -i", "bash -s x", "zsh", "env bash", "timeout 9 sh", "nice dash -", "su u"]
    {
        check(command, StdinUse::Commands);
    }
    for command in ["python3", "python3.11 -i", "node", "perl", "ruby -", "env A=1 python3 -u"] {
        check(command, StdinUse::Program);
    }
    for command in
        ["cat", "tee x", "bash x.sh", "python3 x.py", "node x.js", "sort -u", "make", "python3 -m http.server"]
    {
        check(command, StdinUse::Data);
    }
}

#[test]
fn unknown_programs_take_commands() {
    for script in [
        "exec bash",
        "cd x && sh",
        "while read line; do $line; done",
        "read x; eval \"$x\"",
        "$SHELL",
        "if true",
        &format!("cat #{}", "x".repeat(70_000)),
    ] {
        assert_eq!(stdin_use(&RequestCommand::Script(script.into()), &context()), StdinUse::Commands, "{script}");
    }
    assert_eq!(stdin_use(&RequestCommand::Script("bash -c 'cat; ls'".into()), &context()), StdinUse::Data);
    assert_eq!(stdin_use(&RequestCommand::Script("echo ls | sh".into()), &context()), StdinUse::Data);
}

#[test]
fn incomplete_input_is_not_accepted() {
    for (script, whole) in [
        ("echo a\n", true),
        ("if true; then\n", false),
        ("if true; then\necho a\nfi\n", true),
        ("cat <<E\na\n", false),
        ("cat <<E\na\nE\n", true),
        ("echo 'a\n", false),
        ("echo 'a\nb'\n", true),
        ("echo a \\\n", false),
        ("echo a \\\nb\n", true),
        ("f() {\n", false),
        ("f() {\nls\n}\n", true),
        ("echo $(\n", false),
        ("for i in 1 2\n", false),
        ("case x in\n", false),
        ("{ ls\n", false),
        ("[[ a = a &&\n", false),
        ("ls |\n", false),
        ("ls &&\n", false),
    ] {
        assert_eq!(is_understood(&assess_script(script.as_bytes(), &context())), whole, "{script}");
    }
}
