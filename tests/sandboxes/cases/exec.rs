//! What is run, and how it is found.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use stockade_backend_api::CommandEnd;
use stockade_model::{AttemptPlan, RawText};

use crate::Verdict;
use crate::bench::{Bench, TestSandbox, command, inside};

super::cases! { "exec":
    a_script_is_run, words_arrive_as_they_are, words_need_not_be_text, an_empty_word_is_a_word, a_thousand_words_arrive,
    a_long_word_arrives, a_name_is_looked_up_in_path, a_path_of_the_plan_is_the_one_looked_up, an_absolute_program_is_run,
    a_program_of_the_workspace_is_run, an_absent_program_is_reported_as_absent, an_absent_path_is_reported_as_absent,
    an_unexecutable_program_is_reported_as_such, a_directory_is_no_program, a_file_without_a_header_is_no_program,
    nothing_ran_where_nothing_was_found, commands_find_files_of_earlier_ones, twenty_commands_after_each_other,
    ten_commands_at_once, a_command_beside_a_long_one, executed_programs_are_reported, a_program_by_its_link_is_run,
}

const SHOW: &str = "import sys, os; print([os.fsencode(word) for word in sys.argv[1:]])";

/// What arrives of these words, as Python shows it.
#[track_caller]
fn arrived(test_sandbox: &TestSandbox, words: &[&[u8]]) -> String {
    let mut plan = command(&["python3", "-c", SHOW]);
    plan.argv.extend(words.iter().map(|word| RawText::from(word.to_vec())));
    test_sandbox.run_plan(&plan).ok()
}

fn a_script_is_run(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("x=1; for y in 2 3; do echo $((x + y)); done"), "3\n4\n");
    Ok(())
}

fn words_arrive_as_they_are(bench: &Bench) -> Verdict {
    let words = ["two words", "$HOME", "*", "a\"b'c", "line\nbreak", "back\\slash", "-x", "ä"];
    let expected = r#"[b'two words', b'$HOME', b'*', b'a"b\'c', b'line\nbreak', b'back\\slash', b'-x', b'\xc3\xa4']"#;
    assert_eq!(arrived(&bench.test_sandbox(), &words.map(str::as_bytes)).trim_end(), expected);
    Ok(())
}

fn words_need_not_be_text(bench: &Bench) -> Verdict {
    assert_eq!(arrived(&bench.test_sandbox(), &[b"\xff\xfe", b"\x01\x80"]), "[b'\\xff\\xfe', b'\\x01\\x80']\n");
    Ok(())
}

fn an_empty_word_is_a_word(bench: &Bench) -> Verdict {
    assert_eq!(arrived(&bench.test_sandbox(), &[b"", b"x", b""]), "[b'', b'x', b'']\n");
    Ok(())
}

fn a_thousand_words_arrive(bench: &Bench) -> Verdict {
    let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let mut argv = vec!["bash", "-c", "echo $# $1 ${1000}", "bash"];
    argv.extend(words.iter().map(String::as_str));
    assert_eq!(bench.test_sandbox().run_plan(&command(&argv)).ok(), "1000 0 999\n");
    Ok(())
}

fn a_long_word_arrives(bench: &Bench) -> Verdict {
    let word = "x".repeat(100 << 10);
    assert_eq!(bench.test_sandbox().run_plan(&command(&["bash", "-c", "echo ${#1}", "bash", &word])).ok(), "102400\n");
    Ok(())
}

fn a_name_is_looked_up_in_path(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().run_plan(&command(&["echo", "found"])).ok(), "found\n");
    Ok(())
}

fn a_path_of_the_plan_is_the_one_looked_up(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("mkdir bin; printf '#!/bin/sh\\necho mine\\n' > bin/echo; chmod 755 bin/echo");
    let mut plan = command(&["echo", "theirs"]);
    plan.environment.insert("PATH".to_owned(), "/workspace/bin:/usr/bin:/bin".into());
    assert_eq!(test_sandbox.run_plan(&plan).ok(), "mine\n");
    Ok(())
}

fn an_absolute_program_is_run(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().run_plan(&command(&["/bin/echo", "x"])).ok(), "x\n");
    Ok(())
}

fn a_program_of_the_workspace_is_run(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::write(test_sandbox.work("tool"), "#!/bin/sh\necho $0 $1\n").unwrap();
    fs::set_permissions(test_sandbox.work("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(test_sandbox.run_plan(&command(&["./tool", "x"])).ok(), "./tool x\n");
    assert_eq!(test_sandbox.run_plan(&command(&["/workspace/tool", "y"])).ok(), "/workspace/tool y\n");
    Ok(())
}

fn a_program_by_its_link_is_run(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("ln -s /bin/echo say");
    assert_eq!(test_sandbox.run_plan(&command(&["./say", "x"])).ok(), "x\n");
    Ok(())
}

fn an_absent_program_is_reported_as_absent(bench: &Bench) -> Verdict {
    bench.test_sandbox().run_plan(&command(&["no-such-program"])).ended(CommandEnd::NotFound);
    Ok(())
}

fn an_absent_path_is_reported_as_absent(bench: &Bench) -> Verdict {
    bench.test_sandbox().run_plan(&command(&["/no/such/program"])).ended(CommandEnd::NotFound);
    Ok(())
}

#[track_caller]
fn not_executable(test_sandbox: &TestSandbox, program: &str) {
    let ran = test_sandbox.run_plan(&command(&[program]));
    assert!(matches!(ran.end.end, CommandEnd::NotExecutable(_)), "{ran:?}");
}

fn an_unexecutable_program_is_reported_as_such(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::write(test_sandbox.work("text"), "#!/bin/sh\n").unwrap();
    not_executable(&test_sandbox, "./text");
    Ok(())
}

fn a_directory_is_no_program(bench: &Bench) -> Verdict {
    not_executable(&bench.test_sandbox(), "/usr");
    Ok(())
}

fn a_file_without_a_header_is_no_program(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("head -c 100 /dev/zero > junk; chmod 755 junk");
    not_executable(&test_sandbox, "./junk");
    Ok(())
}

fn nothing_ran_where_nothing_was_found(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let ran = test_sandbox.run_plan(&command(&["no-such-program"]));
    assert_eq!((ran.stdout(), ran.stderr(), ran.denied().len()), (String::new(), String::new(), 0));
    test_sandbox.prints("true");
    Ok(())
}

fn commands_find_files_of_earlier_ones(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("echo one > a; echo home > ~/h; echo temp > /tmp/t");
    assert_eq!(test_sandbox.prints("cat a ~/h /tmp/t"), "one\nhome\ntemp\n");
    assert_eq!(test_sandbox.read_text("a"), "one\n");
    Ok(())
}

fn twenty_commands_after_each_other(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    for number in 0..20 {
        assert_eq!(test_sandbox.prints(&format!("echo {number} >> all; tail -1 all")), format!("{number}\n"));
    }
    assert_eq!(test_sandbox.read_text("all").lines().count(), 20);
    Ok(())
}

fn ten_commands_at_once(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let all = "touch here.$0; until set -- here.*; [ $# = 10 ]; do sleep 0.05; done; echo $0";
    let numbers: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let plans = numbers.iter().map(|number| command(&["bash", "-c", all, number]));
    let running: Vec<_> = plans.map(|plan| test_sandbox.begin(&plan, crate::bench::CAPTURE)).collect();
    let read_text: Vec<String> = running.into_iter().map(|running| running.end().ok()).collect();
    assert_eq!(read_text.concat(), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    Ok(())
}

fn a_command_beside_a_long_one(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let long = test_sandbox.start("touch begun; until [ -e over ]; do sleep 0.02; done; echo long");
    test_sandbox.wait_for("begun");
    assert_eq!(test_sandbox.prints("echo short"), "short\n");
    test_sandbox.prints("touch over");
    assert_eq!(long.end().ok(), "long\n");
    Ok(())
}

fn executed_programs_are_reported(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.require_exact()?;
    let ran = test_sandbox.run_plan(&AttemptPlan { ..inside("/bin/true; exec cat /dev/null") });
    let program_names: Vec<String> = ran.programs.iter().map(|program| program.to_escaped().to_string()).collect();
    assert!(program_names.iter().any(|program| program.ends_with("/cat")), "{program_names:?}");
    Ok(())
}
