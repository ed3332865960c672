//! execve with everything prepared beforehand.

use std::ffi::{CStr, CString};

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
pub fn exec(program: &CStr, arguments: &StringList, environment: &StringList) -> Errno {
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
