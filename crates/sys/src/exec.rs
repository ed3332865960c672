//! execve with all data prepared beforehand.

use std::ffi::{CStr, CString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Errno;
use crate::call::raw_syscall;

/// Argument or environment list in the form of the kernel. The parent makes it, so that the child
/// allocates nothing.
#[derive(Debug)]
pub struct StringList {
    // The pointers point into these; a CString's bytes do not move with it.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringList {
    /// Makes the list and takes ownership of the strings.
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

// SAFETY: the pointers point into the strings that the value itself owns and never changes.
unsafe impl Send for StringList {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for StringList {}

/// Replaces this process by `program`. Returns only on failure.
fn exec_program(program: &CStr, arguments: &StringList, environment: &StringList) -> Errno {
    let args = [
        program.as_ptr() as usize,
        arguments.pointers.as_ptr() as usize,
        environment.pointers.as_ptr() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: a C string and two null-terminated lists of C strings, all alive.
    match unsafe { raw_syscall(libc::SYS_execve, args) } {
        Ok(_) => Errno::INVAL,
        Err(errno) => errno,
    }
}

/// Tries the candidates like execvp(3), but never runs a shell, so the executed program is the one
/// that was displayed. Returns only on failure.
pub fn exec_first(candidates: &[CString], arguments: &StringList, environment: &StringList) -> Errno {
    let mut result = Errno::NOENT;
    for candidate in candidates {
        match exec_program(candidate, arguments, environment) {
            Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT => {}
            Errno::ACCESS => result = Errno::ACCESS,
            errno => return errno,
        }
    }
    result
}

/// Program image of a process: the candidate programs in order, and the arguments and environment
/// for the first one that exists.
#[derive(Debug)]
pub struct ProgramImage {
    /// Possible paths of the program.
    pub candidates: Vec<CString>,
    /// Arguments; the first one is the name of the program.
    pub arguments: StringList,
    /// Variables, each as `NAME=VALUE`.
    pub environment: StringList,
}

impl ProgramImage {
    /// Makes a command execute this image, as the last step before its exec. The command's own
    /// program, arguments and variables are ignored, because a C library would pass a
    /// non-executable file to a shell.
    pub fn replace_command(self, command: &mut Command) {
        // SAFETY: it runs between fork and exec, and makes system calls alone: it allocates
        // nothing, takes no lock, and changes no memory of this process.
        unsafe {
            command.pre_exec(move || Err(exec_first(&self.candidates, &self.arguments, &self.environment).into()))
        };
    }
}
