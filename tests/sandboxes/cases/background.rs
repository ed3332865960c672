//! What a command leaves behind.

use stockade_model::BackgroundPolicy;

use crate::Verdict;
use crate::bench::{Bench, wait_until};
use crate::sleepers;

super::cases! { "background":
    it_lives_on_where_it_is_kept, a_later_command_finds_and_ends_it, it_serves_later_commands, it_ends_where_it_is_to_end,
    processes_that_left_their_session_end_too, it_ends_with_the_sandbox, the_end_of_one_is_not_that_of_another,
    its_output_does_not_hold_the_command_up, it_writes_on,
}

fn build_background_script(mark: &str) -> String {
    format!("(setsid sleep {mark} >/dev/null 2>&1 </dev/null &); true")
}

fn it_lives_on_where_it_is_kept(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(1);
    test_sandbox.prints(&build_background_script(&mark));
    wait_until("it runs", || test_sandbox.sleeping(&mark) == 1);
    test_sandbox.prints("true");
    assert_eq!(test_sandbox.sleeping(&mark), 1);
    Ok(())
}

fn a_later_command_finds_and_ends_it(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(2);
    test_sandbox.prints(&build_background_script(&mark));
    test_sandbox.prints(&format!("pkill -f 'sleep {mark}'"));
    wait_until("it is gone", || test_sandbox.sleeping(&mark) == 0);
    Ok(())
}

fn it_serves_later_commands(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let serve = "import os, socket
s = socket.socket(); s.bind(('127.0.0.1', 8081)); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind('/tmp/u'); u.listen()
if os.fork(): os._exit(0)
n = os.open('/dev/null', 2); [os.dup2(n, i) for i in (0, 1, 2)]
while True: s.accept()[0].sendall(b'hello'); u.accept()[0].sendall(b'there')";
    test_sandbox.python(serve).ok();
    let ask = "import socket; print(socket.create_connection(('127.0.0.1', 8081)).recv(9).decode())
u = socket.socket(socket.AF_UNIX); u.connect('/tmp/u'); print(u.recv(9).decode())";
    assert_eq!(test_sandbox.python(ask).ok(), "hello\nthere\n");
    Ok(())
}

fn it_ends_where_it_is_to_end(bench: &Bench) -> Verdict {
    bench.require_ends_background()?;
    let test_sandbox = bench.test_sandbox_with(|plan| plan.background = BackgroundPolicy::End);
    let mark = sleepers::mark(3);
    test_sandbox.prints(&format!("sleep {mark} >/dev/null 2>&1 </dev/null & echo $!"));
    wait_until("it is gone", || test_sandbox.sleeping(&mark) == 0);
    Ok(())
}

fn processes_that_left_their_session_end_too(bench: &Bench) -> Verdict {
    bench.require_ends_background()?;
    let test_sandbox = bench.test_sandbox_with(|plan| plan.background = BackgroundPolicy::End);
    let mark = sleepers::mark(4);
    test_sandbox
        .prints(&format!("(setsid bash -c '(setsid sleep {mark} &) ; exit' >/dev/null 2>&1 </dev/null &); sleep 0.3"));
    wait_until("it is gone", || test_sandbox.sleeping(&mark) == 0);
    Ok(())
}

fn it_ends_with_the_sandbox(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let mark = sleepers::mark(5);
    test_sandbox.prints(&build_background_script(&mark));
    wait_until("it runs", || test_sandbox.sleeping(&mark) == 1);
    test_sandbox.sandbox().destroy().unwrap();
    assert_eq!(test_sandbox.sleeping(&mark), 0);
    Ok(())
}

fn the_end_of_one_is_not_that_of_another(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let (one, two) = (sleepers::mark(6), sleepers::mark(7));
    test_sandbox.prints(&build_background_script(&one));
    let running = test_sandbox.start(&format!("sleep {two}"));
    wait_until("both run", || test_sandbox.sleeping(&one) == 1 && test_sandbox.sleeping(&two) == 1);
    running.attempt.kill_processes();
    running.end();
    wait_until("the other is gone", || test_sandbox.sleeping(&two) == 0);
    assert_eq!(test_sandbox.sleeping(&one), 1);
    Ok(())
}

fn its_output_does_not_hold_the_command_up(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    let ran = test_sandbox.run("(setsid sleep 1000 &); echo said; exit 4");
    ran.ended(stockade_backend_api::CommandEnd::Exited(4));
    assert_eq!(ran.stdout(), "said\n");
    Ok(())
}

fn it_writes_on(bench: &Bench) -> Verdict {
    bench.require_keeps_background()?;
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints(
        "(setsid bash -c 'until [ -e go ]; do sleep 0.02; done; echo late > late' >/dev/null 2>&1 </dev/null &); true",
    );
    test_sandbox.prints("touch go");
    wait_until("it writes", || test_sandbox.work("late").exists());
    Ok(())
}
