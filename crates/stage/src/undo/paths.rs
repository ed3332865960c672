//! Paths relative to a workspace.

/// Returns the path of the parent directory; `None` for the workspace itself.
pub(super) fn parent_path(path: &[u8]) -> Option<&[u8]> {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => Some(&path[..at]),
        None if path.is_empty() => None,
        None => Some(b""),
    }
}

/// Returns the last name of a path.
pub(super) fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Returns the path of a name in a directory.
pub(super) fn join_path(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
