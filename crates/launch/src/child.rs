//! The code between clone and exec: the init, and in it the command. It makes system calls on
//! prepared data and nothing else: no allocation, no locks, no panics.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, open, unlinkat};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setrlimit, setsid, umask};
use stockade_model::IsolationLevel;
use stockade_sys::clone::{ClonedChild, fork_with};
use stockade_sys::landlock::Ruleset;
use stockade_sys::reap::{self, ChildStateChange, ProcessExit};
use stockade_sys::session::{become_foreground_group, take_terminal};
use stockade_sys::shared_arena::published_value;
use stockade_sys::{Errno, caps, descriptors, exec, fd_passing, fork_signals, seccomp, time_marks};

use super::blueprint::{Blueprint, NamespaceOwner};
use super::cleanup;
use super::command::PreparedCommand;
use super::message::{BuiltFlags, LaunchMessage};
use super::network;
use super::step::{BuildContext, InitStep, verify_directory};
use super::write_counter::OwnWrites;

/// The descriptors that are open when the init starts.
#[derive(Debug)]
pub(super) struct InheritedDescriptors<'a> {
    pub(super) control: BorrowedFd<'a>,
    pub(super) gate: BorrowedFd<'a>,
    pub(super) stdio: [BorrowedFd<'a>; 3],
    /// Sorted numbers of all descriptors that must stay open.
    pub(super) open_fds: &'a [i32],
}

/// Exit code of an init that failed. No process reads it.
const INIT_FAILED_EXIT_CODE: i32 = 125;
/// Exit code of a command that could not be executed, as in shells.
const NOT_FOUND_EXIT_CODE: i32 = 127;

/// Runs the init: builds the sandbox, starts the command, supervises it and cleans up.
pub(super) fn run_init(plan: &Blueprint, inherited: &InheritedDescriptors<'_>) -> i32 {
    time_marks::set_mark(INIT_MADE_MARK);
    let mut context = BuildContext::new(inherited.control, plan.parts.ruleset.as_ref());
    let inherited_mask = umask(Mode::empty());
    let mask = plan.command.as_ref().and_then(|command| command.umask).map_or(inherited_mask, Mode::from_raw_mode);
    // The streams are first, so that no descriptor of a step gets a number below 3.
    let cleared =
        descriptors::place_stdio(inherited.stdio).and_then(|()| descriptors::close_all_but(inherited.open_fds));
    if let Err(errno) = cleared {
        return fail_init(inherited.control, 0, errno);
    }
    go_on(plan, &mut context, inherited.gate, mask, 0)
}

/// Runs an init that is made before there is a plan. It takes the steps with which every plan
/// begins and then waits for the plan. The end of the caller wakes it.
pub(super) fn early_init(first: &[InitStep], control: BorrowedFd<'_>, gate: BorrowedFd<'_>) -> i32 {
    time_marks::set_mark(INIT_MADE_MARK);
    let ruleset;
    let mut context = BuildContext::new(control, None);
    let mut mask = umask(Mode::empty());
    let mut open_fds = [0, 1, 2, control.as_raw_fd(), gate.as_raw_fd()];
    open_fds.sort_unstable();
    let begun = descriptors::close_all_but(&open_fds).map_err(|errno| InitStepError { index: 0, errno });
    if let Err(InitStepError { index, errno }) = begun.and_then(|()| take_steps(first, 0..first.len(), &mut context)) {
        return fail_init(control, index, errno);
    }
    let Ok(Some((LaunchMessage::Plan { umask }, received))) = LaunchMessage::receive_from(control, true) else {
        return INIT_FAILED_EXIT_CODE;
    };
    mask = umask.map_or(mask, Mode::from_raw_mode);
    let plan = published_value::<Blueprint>().and_then(|plan| Some((plan, plan.parts.ruleset.as_ref()?)));
    let (Some((plan, own_rules)), [Some(stdin), Some(stdout), Some(stderr), Some(rules), ..]) =
        (plan, received.descriptors)
    else {
        return fail_init(control, first.len() as u32, Errno::PROTO);
    };
    if let Err(errno) = descriptors::place_stdio([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]) {
        return fail_init(control, first.len() as u32, errno);
    }
    drop((stdin, stdout, stderr));
    ruleset = own_rules.with_descriptor(rules);
    context.ruleset = Some(&ruleset);
    go_on(plan, &mut context, gate, mask, first.len())
}

/// Takes the steps from number `done` on, then supervises. The command's process is made as early
/// as possible, so that it prepares itself while the init builds.
fn go_on(plan: &Blueprint, context: &mut BuildContext<'_>, gate: BorrowedFd<'_>, mask: Mode, done: usize) -> i32 {
    let built = build_sandbox(plan, context, gate, mask, done);
    match built.and_then(|child| supervise_command(plan, context.control, child.map(|child| child.pid), context)) {
        Ok(()) => 0,
        Err(InitStepError { index, errno }) => {
            let code = fail_init(context.control, index, errno);
            remove_private_directory(plan, context);
            code
        }
    }
}

/// Reports the failed part of the init. Returns its exit code.
fn fail_init(control: BorrowedFd<'_>, index: u32, errno: Errno) -> i32 {
    let _ = LaunchMessage::StepFailed { index, errno }.send(control, &[]);
    INIT_FAILED_EXIT_CODE
}

/// The failed part: a step; after the steps, the start of the command; then the supervision.
struct InitStepError {
    index: u32,
    errno: Errno,
}

fn build_sandbox(
    plan: &Blueprint,
    context: &mut BuildContext<'_>,
    gate: BorrowedFd<'_>,
    mask: Mode,
    done: usize,
) -> Result<Option<ClonedChild>, InitStepError> {
    let steps = plan.parts.steps.len();
    let unmade = |errno| InitStepError { index: steps as u32, errno };
    take_steps(&plan.parts.steps, done..plan.alone, context)?;
    if plan.command.as_ref().is_some_and(|program| program.terminal) {
        // The command's process group then has a parent in the session, so its terminal can stop
        // it. Orphaned process groups cannot be stopped (setpgid(2)).
        setsid().map_err(unmade)?;
        take_terminal().map_err(unmade)?;
    }
    let (word, child_socket) = fd_passing::socket_pair().map_err(unmade)?;
    let start = |program: &PreparedCommand| {
        fork_with(0, libc::SIGCHLD, || run_command(plan, program, gate, child_socket.as_fd(), context.ruleset, mask))
    };
    let child = plan.command.as_ref().map(start).transpose().map_err(unmade)?;
    take_steps(&plan.parts.steps, done.max(plan.alone)..steps, context)?;
    hand_over(context).map_err(unmade)?;
    // If the command is gone, it has reported why.
    let _ = LaunchMessage::Built { parts: BuiltFlags::default() }.send(word.as_fd(), &[]);
    Ok(child)
}

/// Reports to the caller that the sandbox is built, and passes the caller's descriptors.
fn hand_over(context: &BuildContext<'_>) -> Result<(), Errno> {
    let network = context.network.as_ref();
    let all = [
        (BuiltFlags::SCRATCH, context.scratch.as_ref()),
        (BuiltFlags::HIDDEN_WATCHES, context.watches.as_ref()),
        (BuiltFlags::DNS_SOCKET, network.map(|n| &n.names)),
        (BuiltFlags::UNREACHABLE_V4, network.map(|n| &n.unreachable)),
        (BuiltFlags::UNREACHABLE_V6, network.and_then(|n| n.unreachable_v6.as_ref())),
        (BuiltFlags::SOCKET_REQUESTS, network.map(|n| &n.asking)),
    ];
    let mut parts = if network.is_some_and(|n| n.unreachable_v6.is_some()) { BuiltFlags::IPV6 } else { 0 };
    parts |= u32::from(context.unmerged) << BuiltFlags::UNMERGED_SHIFT;
    let mut descriptors = [context.control; fd_passing::MAX_DESCRIPTORS];
    let mut count = 0;
    for ((part, fd), slot) in all.iter().filter_map(|(part, fd)| Some((part, (*fd)?))).zip(&mut descriptors) {
        *slot = fd.as_fd();
        parts |= part;
        count += 1;
    }
    LaunchMessage::Built { parts: BuiltFlags(parts) }
        .send(context.control, descriptors.get(..count).unwrap_or_default())?;
    context
        .isolation
        .as_ref()
        .map_or(Ok(()), |isolation| LaunchMessage::Persistent.send(context.control, &isolation.fds()))
}

fn take_steps(steps: &[InitStep], which: Range<usize>, context: &mut BuildContext<'_>) -> Result<(), InitStepError> {
    for (index, step) in steps.iter().enumerate().take(which.end).skip(which.start) {
        step.apply(context).map_err(|errno| InitStepError { index: index as u32, errno })?;
        // Of a plan with more steps than marks, only the first steps are marked.
        if index < FIRST_STAGE_MARK {
            time_marks::set_mark(index);
        }
    }
    Ok(())
}

/// Waits for the command's end or a message from the caller. When this returns, no other process of
/// the run is left.
fn supervise_command(
    plan: &Blueprint,
    control: BorrowedFd<'_>,
    command: Option<Pid>,
    context: &BuildContext<'_>,
) -> Result<(), InitStepError> {
    let unwatched = |errno| InitStepError { index: plan.parts.steps.len() as u32 + 1, errno };
    let ends = fork_signals::child_end_descriptor().map_err(unwatched)?;
    // Only the socket to the caller, the signal descriptor and the descriptors for the clean-up
    // stay open. The end of a pipe kept here would keep its reader waiting. The watches stay open
    // as well: the last process to close them waits for the kernel, and that must not be the
    // caller.
    let counts = plan.command.as_ref().is_some_and(|program| program.counts_writes);
    let writes = if counts { OwnWrites::open() } else { None };
    let mut open_fds = [
        writes.as_ref().map_or(-1, OwnWrites::as_raw),
        control.as_raw_fd(),
        ends.as_raw_fd(),
        context.private_directory.as_ref().map_or(-1, |fd| fd.as_raw_fd()),
        context.watches.as_ref().map_or(-1, |fd| fd.as_raw_fd()),
        context.network.as_ref().map_or(-1, |network| network.serving.as_raw_fd()),
    ];
    close_others(&mut open_fds)
        .and_then(|()| caps::make_opaque())
        .and_then(|()| seccomp::install_filter(&plan.init_filter))
        .map_err(unwatched)?;

    let request_socket = context.network.as_ref().map(|network| network.serving.as_fd());
    let leads_session = plan.command.as_ref().is_some_and(|program| program.terminal);
    let ended = watch_over((control, leads_session), ends.as_fd(), (request_socket, writes.as_ref()), command);
    time_marks::set_mark(ENDED_MARK);
    end_everything(plan, context);
    time_marks::set_mark(REAPED_MARK);
    writes.iter().for_each(|writes| writes.report_count(control));
    if let Some(ended) = ended {
        let _ = LaunchMessage::Ended { ended, used: reap::children_used() }.send(control, &[]);
        // Waits until the caller has released the objects that both processes share.
        while let Ok(Some(_)) | Err(Errno::PROTO | Errno::INTR) = LaunchMessage::receive_from(control, true) {}
    }
    Ok(())
}

/// Closes all descriptors but these; negative numbers stand for none.
fn close_others(open_fds: &mut [i32]) -> Result<(), Errno> {
    open_fds.sort_unstable();
    let first = open_fds.iter().position(|fd| *fd >= 0).unwrap_or(0);
    descriptors::close_all_but(&open_fds[first..])
}

/// Returns the command's end, or `None` if the caller is gone. Without a command, only the caller
/// ends this loop. The wait has no time-out, because the end of the caller always wakes it.
fn watch_over(
    (control, leads_session): (BorrowedFd<'_>, bool),
    ends: BorrowedFd<'_>,
    (mut request_socket, writes): (Option<BorrowedFd<'_>>, Option<&OwnWrites>),
    command: Option<Pid>,
) -> Option<ProcessExit> {
    loop {
        if let Some(ended) = reap_until((control, leads_session), command, writes) {
            return Some(ended);
        }
        // If there is no socket for requests, the control socket takes its slot.
        let third = request_socket.unwrap_or(control);
        let mut waited = [control, ends, third].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut waited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let [from_caller, _, for_socket] = waited.map(|w| w.revents());
        if fork_signals::drain_descriptor(ends) && leads_session {
            // The kernel signals only the session leader.
            let signals = [Signal::HUP, Signal::CONT].map(Signal::as_raw);
            command
                .into_iter()
                .for_each(|command| signals.iter().for_each(|signal| reap::signal_group(command, *signal)));
        }
        if !for_socket.is_empty() {
            request_socket = request_socket.filter(|request_socket| network::serve_one(*request_socket));
        }
        if !from_caller.is_empty() {
            match LaunchMessage::receive_from(control, false) {
                Ok(Some((LaunchMessage::Signal(number), _))) => {
                    command.into_iter().for_each(|command| reap::signal_group(command, number));
                }
                Ok(Some(_)) | Err(Errno::AGAIN) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// Reaps all processes that have ended; returns the command's end if it is among them. If the
/// command has a terminal, its stops are reported to the caller.
fn reap_until(
    (control, leads_session): (BorrowedFd<'_>, bool),
    command: Option<Pid>,
    writes: Option<&OwnWrites>,
) -> Option<ProcessExit> {
    while let Ok(Some((pid, became))) = reap::reap_any() {
        match became {
            // The parent is gone, so no other process counts these writes.
            ChildStateChange::Ended(_) if Some(pid) != command => {
                writes.into_iter().for_each(|writes| writes.report_count(control))
            }
            _ if Some(pid) != command => {}
            ChildStateChange::Ended(ended) => return Some(ended),
            // The next wait notices if the caller is gone.
            ChildStateChange::Stopped(signal) if leads_session => {
                let _ = LaunchMessage::Stopped { signal }.send(control, &[]);
            }
            ChildStateChange::Stopped(_) => {}
        }
    }
    None
}

fn end_everything(plan: &Blueprint, context: &BuildContext<'_>) {
    match plan.level {
        IsolationLevel::Full => reap::end_namespace(),
        IsolationLevel::Restricted | IsolationLevel::None => cleanup::end_descendants(),
    }
    remove_private_directory(plan, context);
}

/// Empties the private directory by its descriptor and removes its name.
fn remove_private_directory(plan: &Blueprint, context: &BuildContext<'_>) {
    let Some(directory) = &context.private_directory else { return };
    for step in &plan.parts.steps {
        if let InitStep::PrivateDirectory { path, .. } = step {
            // The run may have removed the permissions. By path, because a descriptor cannot reach
            // through a closed directory.
            let _ = chmodat(CWD, path, Mode::RWXU, AtFlags::empty());
            cleanup::empty_directory(directory.as_fd());
            let _ = unlinkat(CWD, path, AtFlags::REMOVEDIR);
        }
    }
}

/// The stages of the command, for errors: name and description.
pub(super) const COMMAND_STAGES: &[(&str, &str)] = &[
    ("session", "a session of its own, without the caller's terminal"),
    ("limits", "resource limits"),
    ("descriptors", "only the standard streams"),
    ("capabilities", "no capabilities, no way to get them back"),
    ("filter", "system-call filter with a listener"),
    ("building", "wait until the sandbox is built"),
    ("directory", "enter the working directory"),
    ("landlock", "Landlock domain"),
    ("groups", "enter its control groups"),
    ("handover", "hand the listener over"),
];

/// Marks: a step of the init has its own number; the stages of the command begin here.
pub(super) const FIRST_STAGE_MARK: usize = 400;
/// The init was made.
pub(super) const INIT_MADE_MARK: usize = 424;
/// The init has made the command's process.
pub(super) const COMMAND_MADE_MARK: usize = 420;
/// The command was released and executes its program.
pub(super) const RELEASED_MARK: usize = 421;
/// The init has seen the command's end.
pub(super) const ENDED_MARK: usize = 422;
/// No process but the init is left.
pub(super) const REAPED_MARK: usize = 423;

/// The `oom_score_adj` of the command, in thousandths of the memory: the kernel adds it to the
/// command's actual use.
const OOM_SCORE_ADJUSTMENT: (i32, &[u8]) = (200, b"200");

/// The stage that waits for the init.
const BUILDING_STAGE: u32 = 5;

/// Runs the command up to its exec.
fn run_command(
    plan: &Blueprint,
    program: &PreparedCommand,
    gate: BorrowedFd<'_>,
    built: BorrowedFd<'_>,
    ruleset: Option<&Ruleset>,
    mask: Mode,
) -> i32 {
    match prepare_command(plan, program, gate, built, ruleset, mask) {
        Ok(()) => {}
        // The init has reported the failure.
        Err((BUILDING_STAGE, _)) => return INIT_FAILED_EXIT_CODE,
        Err((index, errno)) => {
            let _ = LaunchMessage::StageFailed { index, errno }.send(gate, &[]);
            return INIT_FAILED_EXIT_CODE;
        }
    }
    if !matches!(LaunchMessage::receive_from(gate, true), Ok(Some((LaunchMessage::Go, _)))) {
        return INIT_FAILED_EXIT_CODE;
    }
    fork_signals::reset_for_exec();
    time_marks::set_mark(RELEASED_MARK);
    // The program that runs is the one that was shown (L5).
    let errno = exec::exec_first(&program.candidates, &program.arguments, &program.environment);
    let _ = LaunchMessage::ExecFailed { errno }.send(gate, &[]);
    NOT_FOUND_EXIT_CODE
}

/// Prepares the command's process. Only the last stages depend on the init's concurrent building.
fn prepare_command(
    plan: &Blueprint,
    program: &PreparedCommand,
    gate: BorrowedFd<'_>,
    built: BorrowedFd<'_>,
    ruleset: Option<&Ruleset>,
    mask: Mode,
) -> Result<(), (u32, Errno)> {
    let done = |stage: usize| time_marks::set_mark(FIRST_STAGE_MARK + stage);
    time_marks::set_mark(COMMAND_MADE_MARK);
    own_session(plan, program).map_err(|e| (0, e))?;
    done(0);
    for (resource, limit) in &program.limits {
        setrlimit(*resource, *limit).map_err(|e| (1, e))?;
    }
    if plan.level != IsolationLevel::Full {
        // If this fails, the command runs all the same.
        let _ = end_before_others();
    }
    done(1);
    umask(mask);
    // Descriptors 0 to 2 are the command's streams already. The init's end of `built` is closed
    // too, because only then is the init's death noticed.
    let mut open_fds =
        [0, 1, 2, gate.as_raw_fd(), built.as_raw_fd(), ruleset.map_or(-1, |rules| rules.as_fd().as_raw_fd())];
    close_others(&mut open_fds).map_err(|e| (2, e))?;
    descriptors::mark_close_on_exec_from(3).map_err(|e| (2, e))?;
    done(2);
    caps::drop_all().map_err(|e| (3, e))?;
    done(3);
    let listener = seccomp::install_with_listener(&program.filter).map_err(|e| (4, e))?;
    done(4);
    match LaunchMessage::receive_from(built, true) {
        Ok(Some((LaunchMessage::Built { .. }, _))) => {}
        _ => return Err((BUILDING_STAGE, Errno::PIPE)),
    }
    done(5);
    rustix::process::chdir(&*program.cwd).map_err(|e| (6, e))?;
    if let Some(identity) = program.cwd_identity {
        verify_directory(c".", identity).map_err(|e| (6, e))?;
    }
    done(6);
    ruleset.ok_or(Errno::BADF).and_then(Ruleset::restrict_self).map_err(|e| (7, e))?;
    if plan.isolation == NamespaceOwner::Persistent {
        // From here on, the Landlock domain protects this process from its neighbours. The broker
        // must read the memory of this process.
        caps::make_transparent().map_err(|e| (7, e))?;
    }
    done(7);
    enter_groups(gate).map_err(|e| (8, e))?;
    done(8);
    let ready = LaunchMessage::Ready { wait_killable: listener.wait_killable, umask: mask.bits() };
    ready.send(gate, &[listener.fd.as_fd()]).map_err(|e| (9, e))
}

/// Raises the command's OOM score. If memory runs out, the kernel then kills the command rather
/// than the process that reports on it. Both may be in the same group (proc_pid_oom_score_adj(5)).
/// At level full they are not, and the root is being replaced meanwhile.
fn end_before_others() -> Result<(), Errno> {
    let file = open(c"/proc/self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0; 8];
    let length = rustix::io::read(&file, &mut text)?;
    let own = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim_end().parse::<i32>().ok());
    if own.is_some_and(|own| own < OOM_SCORE_ADJUSTMENT.0) {
        rustix::io::write(&file, OOM_SCORE_ADJUSTMENT.1).map(drop)
    } else {
        Ok(())
    }
}

/// Moves this process into its control groups. In version 1, moving another thread waits for a lock
/// on all forks of the machine (up to 15 ms). A thread that moves itself need not wait. The caller
/// has opened the files, because it has the permission.
fn enter_groups(gate: BorrowedFd<'_>) -> Result<(), Errno> {
    let Some((LaunchMessage::Groups, received)) = LaunchMessage::receive_from(gate, true)? else {
        return Err(Errno::PROTO);
    };
    received.descriptors.iter().flatten().try_for_each(|file| rustix::io::write(file, b"0").map(drop))
}

/// Starts a session. Without a PID namespace of its own, the command must die with the init. The
/// kernel refuses a terminal that another session controls.
fn own_session(plan: &Blueprint, program: &PreparedCommand) -> Result<(), Errno> {
    if program.terminal {
        become_foreground_group()?;
    } else {
        setsid()?;
    }
    if plan.level != IsolationLevel::Full || plan.isolation == NamespaceOwner::Persistent {
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent outside this PID namespace has no number here. A process with a parent number
        // was adopted.
        let is_adopted = plan.isolation == NamespaceOwner::Persistent && parent.is_some();
        if is_adopted || getppid() != parent {
            return Err(Errno::SRCH);
        }
    }
    Ok(())
}
