//! Paths relative to a workspace.

/// Splits a path into the path of its directory and the name in it.
pub(super) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Returns the path of the parent directory; `None` for the workspace itself.
pub(super) fn parent_path(path: &[u8]) -> Option<&[u8]> {
    (!path.is_empty()).then(|| split_path(path).0)
}

/// Returns the paths of the directories above a path, without the workspace itself.
pub(super) fn paths_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| &path[..end])
}

/// Returns a path, after the paths above it.
pub(super) fn path_and_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    paths_above(path).chain([path])
}

/// Returns the path of a name in a directory.
pub(super) fn join_path(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
