//! What a command says.

use std::io::Read as _;

use stockade_backend_api::{CommandEnd, StdioMode};

use crate::Verdict;
use crate::bench::{Bench, CAPTURE, inside, python};
use crate::streams::{Pipes, StreamOutput, let_go};

super::cases! { "streams":
    output_and_errors_are_separate, every_byte_arrives, nothing_is_nothing, no_line_end_is_needed, a_megabyte_is_kept_whole,
    output_over_the_limit_is_dropped_from_the_middle, both_are_drained_together, output_arrives_at_once,
    both_keep_their_order_in_one_pipe, thirty_megabytes_go_through, a_closed_reader_ends_the_writer,
    a_reader_that_waits_makes_the_writer_wait, a_blocked_writer_blocks_no_other, a_closed_output_is_no_end,
    descendants_speak_too, commands_at_once_are_not_mixed, output_before_a_signal_arrives,
}

fn output_and_errors_are_separate(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("echo out; echo err >&2; echo out2");
    assert_eq!((ran.ok().as_str(), ran.stderr().as_str()), ("out\nout2\n", "err\n"));
    Ok(())
}

fn every_byte_arrives(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)");
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(ran.end.stdout.unwrap().as_bytes(), all.repeat(3));
    Ok(())
}

fn nothing_is_nothing(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("true");
    assert_eq!((ran.ok(), ran.stderr(), ran.end.truncated), (String::new(), String::new(), false));
    Ok(())
}

fn no_line_end_is_needed(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("printf abc"), "abc");
    Ok(())
}

fn a_megabyte_is_kept_whole(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("yes 0123456789abcdef | head -c 1048576");
    assert_eq!(ran.ok().len(), 1 << 20);
    assert!(!ran.end.truncated && ran.stdout() == "0123456789abcdef\n".repeat(61_681)[..1 << 20]);
    Ok(())
}

fn output_over_the_limit_is_dropped_from_the_middle(bench: &Bench) -> Verdict {
    let script = "echo begin; yes middle | head -n 100000; echo end";
    let ran = bench.test_sandbox().begin(&inside(script), StdioMode::Capture { limit_bytes: 1000 }).end();
    let output = ran.ok();
    assert!(ran.end.truncated && output.len() < 1100, "{} bytes", output.len());
    assert!(
        output.starts_with("begin\nmiddle\n") && output.ends_with("middle\nend\n") && output.contains("bytes dropped")
    );
    Ok(())
}

fn both_are_drained_together(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("yes out | head -c 500000 & yes err | head -c 500000 >&2; wait");
    assert_eq!((ran.ok().len(), ran.stderr().len()), (500_000, 500_000));
    Ok(())
}

fn output_arrives_at_once(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let pipes = Pipes::new();
    let script = "echo first; until [ -e go ]; do sleep 0.02; done; echo second >&2";
    let running = test_sandbox.begin(&inside(script), StdioMode::Inherit);
    let_go();
    pipes.stdout.until("first\n");
    std::fs::write(test_sandbox.work("go"), "").unwrap();
    assert_eq!((pipes.stderr.text(), pipes.stdout.text()), ("second\n".to_owned(), "first\n".to_owned()));
    running.end().ended(CommandEnd::Exited(0));
    Ok(())
}

fn both_keep_their_order_in_one_pipe(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let ran = test_sandbox.run("exec 2>&1; for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done");
    assert_eq!(ran.ok(), "out1\nerr1\nout2\nerr2\nout3\nerr3\nout4\nerr4\nout5\nerr5\n");
    Ok(())
}

fn thirty_megabytes_go_through(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let pipes = Pipes::new();
    let running = test_sandbox.begin(&inside("head -c 30000000 /dev/zero; echo end"), StdioMode::Inherit);
    let_go();
    let output_bytes = pipes.stdout.whole();
    running.end().ended(CommandEnd::Exited(0));
    assert_eq!((output_bytes.len(), &output_bytes[30_000_000..]), (30_000_004, &b"end\n"[..]));
    Ok(())
}

fn a_closed_reader_ends_the_writer(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (stdout, _stderr, _stdin) = Pipes::unheard();
    let running = test_sandbox.begin(&inside("exec yes"), StdioMode::Inherit);
    let_go();
    drop(stdout);
    let end = running.end().end.end;
    assert!(matches!(end, CommandEnd::Signaled(13) | CommandEnd::Exited(1)), "{end:?}");
    Ok(())
}

/// Fills a pipe that nobody reads, however large it is made.
const FILL: &str = "python3 -c 'import os; os.write(1, bytes(4 << 20))' & sleep 0.3; touch full; wait; touch emptied";

fn a_reader_that_waits_makes_the_writer_wait(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (mut stdout, _stderr, _stdin) = Pipes::unheard();
    let running = test_sandbox.begin(&inside(FILL), StdioMode::Inherit);
    let_go();
    test_sandbox.wait_for("full");
    assert!(!test_sandbox.work("emptied").exists(), "somebody keeps what nobody reads");
    let mut all = Vec::new();
    stdout.read_to_end(&mut all).unwrap();
    running.end().ended(CommandEnd::Exited(0));
    assert_eq!(all.len(), 4 << 20);
    Ok(())
}

fn a_blocked_writer_blocks_no_other(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (stdout, _stderr, _stdin) = Pipes::unheard();
    let running = test_sandbox.begin(&inside(FILL), StdioMode::Inherit);
    let_go();
    test_sandbox.wait_for("full");
    assert_eq!(test_sandbox.prints("echo free"), "free\n");
    assert_eq!(StreamOutput::from(stdout).whole().len(), 4 << 20);
    running.end().ended(CommandEnd::Exited(0));
    Ok(())
}

fn a_closed_output_is_no_end(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let ran = test_sandbox.run("echo said; exec >&- 2>&-; sleep 0.2; touch later; exit 3");
    ran.ended(CommandEnd::Exited(3));
    assert!(ran.stdout() == "said\n" && test_sandbox.work("later").exists());
    Ok(())
}

fn descendants_speak_too(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("(bash -c '(echo deep); echo less') | cat; echo own"), "deep\nless\nown\n");
    Ok(())
}

fn commands_at_once_are_not_mixed(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let plans: Vec<_> = (0..5).map(|n| python(&format!("print('{n}' * 100000)"))).collect();
    let running: Vec<_> = plans.iter().map(|plan| test_sandbox.begin(plan, CAPTURE)).collect();
    for (number, running) in running.into_iter().enumerate() {
        assert_eq!(running.end().ok(), number.to_string().repeat(100_000) + "\n");
    }
    Ok(())
}

fn output_before_a_signal_arrives(bench: &Bench) -> Verdict {
    let ran = bench.test_sandbox().run("echo last words; kill -KILL $$");
    ran.ended(CommandEnd::Signaled(9));
    assert_eq!(ran.stdout(), "last words\n");
    Ok(())
}
