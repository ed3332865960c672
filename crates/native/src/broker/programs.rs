//! Decides on programs that are about to run: the program of an `execve` and the interpreters of a script.
//!
//! The kernel carries a permitted call out itself. The kernel reads path and arguments again from
//! the caller's memory, which another thread may have changed by then. This is acceptable here, and
//! only here, because a rule about programs is advisory: every program of the run is confined in
//! the same way. The first program is the command, which was approved before.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::{Access, FileType, Mode, OFlags, ResolveFlags, openat2};
use stockade_model::{DeniedOperation, Grant};
use stockade_permissions::programs::{ExecProgram, MAX_CHECKED_ARGUMENTS, parse_shebang};
use stockade_sys::{Errno, resolve};

use super::brokered_call::BrokeredCall;
use super::call_result::{CallProgress, CallResult, native_access, refuse_operation};
use super::caller::CallingThread;
use super::denials::CallerProcess;
use super::service::BrokerService;
use super::walk::ResolvedObject;

/// Bytes that the kernel reads of a file to detect its format: `BINPRM_BUF_SIZE` (binfmts.h).
const EXEC_HEADER_BYTES: u64 = 256;
/// Nested interpreters that the kernel follows (fs/exec.c).
const MAX_INTERPRETERS: usize = 5;
/// Longest argument that is checked; no pattern is longer.
const MAX_ARGUMENT_BYTES: usize = 4096;
/// Total length of arguments, in bytes, after which no more are read.
const MAX_TOTAL_ARGUMENT_BYTES: usize = 16 << 10;

/// A held program, with all programs that running it starts.
pub(super) struct ProgramStart {
    pub object: ResolvedObject,
    /// The program and its interpreters; `is_readable` is true if the last of them could be read.
    programs: Vec<ExecProgram>,
    is_readable: bool,
}

impl BrokerService {
    /// Reads an exec call. Returns `None` for the command itself, and for a program that no rule or
    /// effect is about.
    pub(super) fn read_exec(&mut self, caller: &CallingThread, at: bool) -> CallResult<Option<BrokeredCall>> {
        let found = self.program_to_run(caller, at);
        let programs = &self.powers.programs;
        let is_plain = match &found {
            Ok((object, called)) => programs.is_plain(&object.path, called.as_bytes()),
            Err(_) => programs.has_no_rules(),
        };
        if !self.has_started || is_plain {
            if let Ok((object, _)) = found {
                // The launcher tries one path after the other.
                self.has_started = true;
                self.report_execution(Some(self.process_of(caller)), &object);
            }
            return Ok(None);
        }
        // A program that cannot be checked must not run without a decision.
        let (object, called) = found?;
        let start = self.start_of(caller, object, called.into_bytes(), if at { 2 } else { 1 })?;
        Ok(Some(BrokeredCall::Run(start)))
    }

    /// Decides whether a program may run, with the current powers.
    pub(super) fn may_run(&self, start: &ProgramStart) -> CallResult {
        let refused = |path: &[u8], refusal| refuse_operation(DeniedOperation::Exec, path, refusal);
        for program in &start.programs {
            let programs = &self.powers.programs;
            let decided = match self.powers.layers.covers(&program.path) {
                true => programs.decide_in_layer(program),
                false => programs.decide_program(program),
            };
            decided.map_err(|refusal| match &refusal.grant {
                Some(Grant::Effect(_)) => refused(&program.command_line(), refusal),
                _ => refused(&program.path, refusal),
            })?;
        }
        if let (false, Some(last)) = (start.is_readable, start.programs.last()) {
            self.powers.programs.decide_unread(&last.path).map_err(|refusal| refused(&last.path, refusal))?;
        }
        Ok(CallProgress::CONTINUE)
    }

    /// Reports that a program runs.
    pub(super) fn report_execution(&self, pid: Option<u32>, object: &ResolvedObject) {
        if let Some(reads) = &self.reads {
            self.note_read(reads, object, || CallerProcess { pid, program: Some(object.path.clone().into()) });
        }
        self.lock_ledger().note_execution(pid.unwrap_or_default(), object.path.clone());
    }

    /// Resolves the links in the rules' paths, in the root of the run.
    pub(super) fn follow_rules(&mut self) {
        let Some(first) = &self.first else { return };
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        self.powers.programs.resolve_links(|path| {
            let held = openat2(&first.root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how).ok()?;
            ResolvedObject::path_of(&held).ok()
        });
    }

    pub(super) fn process_of(&self, caller: &CallingThread) -> u32 {
        caller.host_pid().unwrap_or(caller.request.pid)
    }

    /// Returns the program that an exec would run, if it exists and is executable, and the path as
    /// the caller wrote it.
    fn program_to_run(&self, caller: &CallingThread, at: bool) -> Result<(ResolvedObject, CString), Errno> {
        let (start, index) = caller.first_path_argument(at);
        let path = caller.read_path(index)?;
        let object = if at && path.is_empty() {
            ResolvedObject::from_fd(caller.open_object(start)?)?
        } else {
            self.start_resolution(caller)?.resolve_object(start, &path, true)?
        };
        native_access(&object.fd, Access::EXEC_OK)?;
        Ok((object, path))
    }

    /// Reads the arguments that rules check, and the interpreters of `object`. `list` is the index
    /// of the call's argument that points at the argument list.
    fn start_of(
        &self,
        caller: &CallingThread,
        object: ResolvedObject,
        called: Vec<u8>,
        list: usize,
    ) -> Result<ProgramStart, Errno> {
        let rules = &self.powers.programs;
        let mut own: Option<Vec<Vec<u8>>> = None;
        let mut arguments = |word_count: usize| match &own {
            Some(words) => Ok(words.clone()),
            None if word_count == 0 => Ok(Vec::new()),
            None => read_arguments(caller, list).inspect(|words| own = Some(words.clone())),
        };
        let mut programs = Vec::new();
        let mut before: Vec<Vec<u8>> = Vec::new();
        let mut now = ExecProgram { path: object.path.clone(), called, arguments: Vec::new() };
        let mut held: Option<ResolvedObject> = None;
        let is_readable = loop {
            let word_count = rules.words_of_interest(&now.path, &now.called).unwrap_or(0);
            now.arguments = before.clone();
            now.arguments.extend(arguments(word_count.saturating_sub(before.len()))?);
            let script = now.called.clone();
            programs.push(now);
            let current = held.as_ref().unwrap_or(&object);
            let Some(start) = start_bytes(current) else { break current.file_type() != FileType::RegularFile };
            let Some((name, argument)) = parse_shebang(&start) else { break true };
            // The kernel fails if there is one interpreter more.
            if programs.len() > MAX_INTERPRETERS {
                break true;
            }
            let name = CString::new(name).map_err(|_| Errno::NOEXEC)?;
            let next = self.start_resolution(caller)?.resolve_object(libc::AT_FDCWD, &name, true)?;
            native_access(&next.fd, Access::EXEC_OK)?;
            // Same order as the kernel's: the argument of the `#!` line, the script, then the
            // script's own arguments.
            before = argument.map(<[u8]>::to_vec).into_iter().chain([script]).chain(before).collect();
            now = ExecProgram { path: next.path.clone(), called: name.into_bytes(), arguments: Vec::new() };
            held = Some(next);
        };
        self.must_still_wait(caller)?;
        Ok(ProgramStart { object, programs, is_readable })
    }
}

/// Reads the arguments after the program's own name.
fn read_arguments(caller: &CallingThread, list: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let (mut words, mut length) = (Vec::new(), 0);
    for index in 1..MAX_CHECKED_ARGUMENTS {
        // A list without a program name has no second word.
        if index == 1 && (caller.request.args[list] == 0 || caller.read_pointer(list, 0)? == 0) {
            break;
        }
        match caller.read_pointer(list, index)? {
            0 => break,
            // The call waits meanwhile, so later arguments are not read.
            _ if length >= MAX_TOTAL_ARGUMENT_BYTES => break,
            address => {
                let word = caller.read_argument(address, MAX_ARGUMENT_BYTES)?;
                length += word.len();
                words.push(word);
            }
        }
    }
    Ok(words)
}

/// Returns the first bytes of a regular file, or `None` if it cannot be read.
fn start_bytes(object: &ResolvedObject) -> Option<Vec<u8>> {
    if object.file_type() != FileType::RegularFile {
        return None;
    }
    let file = File::from(resolve::reopen(object.fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?);
    let mut start = Vec::new();
    file.take(EXEC_HEADER_BYTES).read_to_end(&mut start).ok()?;
    Some(start)
}
