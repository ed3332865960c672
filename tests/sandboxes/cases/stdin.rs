//! What a command is told.

use std::io::Write as _;
use std::thread;

use stockade_backend_api::{CommandEnd, StdioMode};

use crate::Verdict;
use crate::bench::{Bench, RunningCommand, inside};
use crate::streams::{Pipes, let_go};

super::cases! { "stdin":
    text_is_read, bytes_are_read, no_input_is_an_end, the_end_is_felt, eight_megabytes_are_read, one_line_at_a_time,
    an_unread_stream_blocks_no_other, a_writer_without_a_reader_gets_an_error, descendants_read_too,
    messages_before_the_end_are_read, it_may_be_closed,
}

/// Begins a script with pipes for its streams.
#[track_caller]
fn start_with_input(test_sandbox: &crate::bench::TestSandbox, script: &str) -> (RunningCommand, Pipes) {
    let pipes = Pipes::new();
    let running = test_sandbox.begin(&inside(script), StdioMode::Inherit);
    let_go();
    (running, pipes)
}

/// What a script prints that is told this and no more.
#[track_caller]
fn answer(bench: &Bench, script: &str, input: &[u8]) -> Vec<u8> {
    let test_sandbox = bench.test_sandbox();
    let (running, Pipes { mut stdin, stdout, .. }) = start_with_input(&test_sandbox, script);
    let input = input.to_owned();
    // A reader that ends early is a case of its own.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = stdout.whole();
    writer.join().unwrap();
    running.end().ended(CommandEnd::Exited(0));
    output
}

fn text_is_read(bench: &Bench) -> Verdict {
    assert_eq!(answer(bench, "read x y; echo $y $x", b"one two\n"), b"two one\n");
    Ok(())
}

fn bytes_are_read(bench: &Bench) -> Verdict {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(answer(bench, "cat", &all), all);
    Ok(())
}

fn no_input_is_an_end(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("cat; echo over"), "over\n");
    Ok(())
}

fn the_end_is_felt(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, Pipes { stdin, stdout, .. }) = start_with_input(&test_sandbox, "echo waits; cat; echo over");
    stdout.until("waits\n");
    drop(stdin);
    assert_eq!(stdout.text(), "waits\nover\n");
    running.end().ended(CommandEnd::Exited(0));
    Ok(())
}

fn eight_megabytes_are_read(bench: &Bench) -> Verdict {
    let input: Vec<u8> = (0_u32..2 << 20).flat_map(u32::to_le_bytes).collect();
    let program = "python3 -c 'import sys, zlib; d = sys.stdin.buffer.read(); print(len(d), zlib.crc32(d))'";
    let test_sandbox = bench.test_sandbox();
    std::fs::write(test_sandbox.work("same"), &input).unwrap();
    let expected = test_sandbox.prints(&format!("{program} < same"));
    assert!(expected.starts_with("8388608 "));
    assert_eq!(String::from_utf8_lossy(&answer(bench, program, &input)), expected);
    Ok(())
}

fn one_line_at_a_time(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, mut pipes) =
        start_with_input(&test_sandbox, "while read line; do echo \"heard $line\"; done; echo over");
    for line in ["one", "two", "three"] {
        writeln!(pipes.stdin, "{line}").unwrap();
        pipes.stdout.until(&format!("heard {line}\n"));
    }
    drop(pipes.stdin);
    pipes.stdout.until("over\n");
    running.end().ended(CommandEnd::Exited(0));
    Ok(())
}

fn an_unread_stream_blocks_no_other(bench: &Bench) -> Verdict {
    assert_eq!(answer(bench, "echo done", &vec![b'x'; 4 << 20]), b"done\n");
    Ok(())
}

fn a_writer_without_a_reader_gets_an_error(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let (running, mut pipes) = start_with_input(&test_sandbox, "true");
    running.end().ended(CommandEnd::Exited(0));
    // A relay may have taken some; it does not take all.
    crate::bench::wait_until("the writer is told", || (&pipes.stdin).write_all(&[b'x'; 4 << 10]).is_err());
    pipes.stdin.flush().unwrap();
    Ok(())
}

fn descendants_read_too(bench: &Bench) -> Verdict {
    assert_eq!(answer(bench, "bash -c 'read a; echo child $a'; read b; echo own $b", b"1\n2\n"), b"child 1\nown 2\n");
    Ok(())
}

fn messages_before_the_end_are_read(bench: &Bench) -> Verdict {
    assert_eq!(answer(bench, "sleep 0.3; cat", b"early"), b"early");
    Ok(())
}

fn it_may_be_closed(bench: &Bench) -> Verdict {
    assert_eq!(bench.test_sandbox().prints("exec <&-; cat 2>/dev/null || echo closed"), "closed\n");
    Ok(())
}
