//! Errors of the parts of a run as errors of its start.

use stockade_backend_api::StartError;
use stockade_launch::LaunchError;
use stockade_limits::LimitError;
use stockade_sys::Errno;

pub(crate) fn map_launch_error(error: LaunchError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

pub(crate) fn map_limit_error(error: LimitError) -> StartError {
    StartError { what: error.to_string(), hint: error.hint() }
}

/// Maps an error without a hint.
pub(crate) fn map_plain_error(error: impl std::fmt::Display) -> StartError {
    StartError { what: error.to_string(), hint: None }
}

/// Maps an error whose text ends with its hint.
pub(crate) fn map_hinted_error(error: impl std::fmt::Display) -> StartError {
    let text = error.to_string();
    match text.split_once("\nhint: ") {
        Some((what, hint)) => StartError { what: what.to_owned(), hint: Some(hint.to_owned()) },
        None => StartError { what: text, hint: None },
    }
}

pub(crate) fn no_descriptor(errno: Errno) -> StartError {
    StartError {
        what: format!("cannot make a descriptor: {errno}"),
        hint: Some("raise the limit of open files (ulimit -n)".to_owned()),
    }
}
