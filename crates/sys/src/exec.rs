//! execve with everything prepared beforehand.

use std::ffi::{CStr, CString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Errno;
use crate::call::raw;

/// An argument or environment list in the form the kernel takes: made in the
/// parent, so that the child allocates nothing.
#[derive(Debug)]
pub struct StringList {
    // The pointers point into these; a CString's bytes do not move with it.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringList {
    /// Takes the strings over.
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

// SAFETY: the pointers point into the strings that the value itself owns and
// never changes.
unsafe impl Send for StringList {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for StringList {}

/// Replaces this process by `program`. Returns only on failure.
fn exec(program: &CStr, arguments: &StringList, environment: &StringList) -> Errno {
    let args = [
        program.as_ptr() as usize,
        arguments.pointers.as_ptr() as usize,
        environment.pointers.as_ptr() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: a C string and two null-terminated lists of C strings, all alive.
    match unsafe { raw(libc::SYS_execve, args) } {
        Ok(_) => Errno::INVAL,
        Err(errno) => errno,
    }
}

/// Tries the candidates as execvp(3) does, but never a shell: what runs is what was
/// shown. Returns only on failure.
pub fn exec_first(candidates: &[CString], arguments: &StringList, environment: &StringList) -> Errno {
    let mut result = Errno::NOENT;
    for candidate in candidates {
        match exec(candidate, arguments, environment) {
            Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT => {}
            Errno::ACCESS => result = Errno::ACCESS,
            errno => return errno,
        }
    }
    result
}

/// What a process is to become: the programs to try, in order, and what the one that
/// is there is given.
#[derive(Debug)]
pub struct Image {
    /// Where the program may be.
    pub candidates: Vec<CString>,
    /// Its words, its name first.
    pub arguments: StringList,
    /// Its variables, each as `NAME=VALUE`.
    pub environment: StringList,
}

impl Image {
    /// Has a command become this, after all else that it does before it begins. Its own
    /// program, words and variables are not looked at: a C library would hand what is no
    /// program to a shell.
    pub fn replace(self, command: &mut Command) {
        // SAFETY: it runs between fork and exec, and makes system calls alone: it allocates
        // nothing, takes no lock, and changes no memory of this process.
        unsafe {
            command.pre_exec(move || Err(exec_first(&self.candidates, &self.arguments, &self.environment).into()))
        };
    }
}
