//! Meaning of the names of a project's settings files, for editors and for tools that run programs
//! when a directory is merely opened. Decides which of them are checked by their content. Pure.
//!
//! Other names stay guarded.

use stockade_model::DeniedOperation;

use super::view::{last_component, parent_path};
use crate::powers::prefix_ends;

/// A name among a project's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectPathKind {
    /// `.vscode`, which has no effect by itself.
    Directory,
    /// A file that is checked as a whole.
    File(ProjectFile),
    /// A temporary file that a program writes before it replaces such a file. No editor reads it.
    Passing,
}

/// A settings file with known harmless forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectFile {
    /// `.vscode/settings.json`.
    EditorSettings,
    /// `.vscode/tasks.json` and `launch.json`. The user starts these tasks, except those that run
    /// when the folder is opened.
    EditorTasks,
    /// `.vscode/extensions.json`.
    EditorExtensions,
    /// `.npmrc`.
    Npm,
    /// `.tool-versions`.
    ToolVersions,
    /// `rust-toolchain`, `rust-toolchain.toml`.
    RustToolchain,
    /// `.cargo/config`, `.cargo/config.toml`.
    Cargo,
    /// `.yarnrc.yml`.
    Yarn,
}

impl ProjectPathKind {
    /// Returns the kind of `path` beneath the writable root of `root_length` bytes. Also returns
    /// the length of the path of the guarded name that it is or is within.
    pub fn classify_path(path: &[u8], root_length: usize) -> Option<(usize, Self)> {
        let file = match last_component(path) {
            b".vscode" => return (path.len() > root_length).then_some((path.len(), Self::Directory)),
            b"settings.json" => ProjectFile::EditorSettings,
            b"tasks.json" | b"launch.json" => ProjectFile::EditorTasks,
            b"extensions.json" => ProjectFile::EditorExtensions,
            b".npmrc" => ProjectFile::Npm,
            b".yarnrc.yml" => ProjectFile::Yarn,
            b".tool-versions" => ProjectFile::ToolVersions,
            b"rust-toolchain" | b"rust-toolchain.toml" => ProjectFile::RustToolchain,
            b"config" | b"config.toml" => ProjectFile::Cargo,
            other => {
                let unit = parent_path(path).len();
                return (is_passing(other) && last_component(parent_path(path)) == b".vscode" && unit > root_length)
                    .then_some((unit, Self::Passing));
            }
        };
        let directory: Option<&[u8]> = match file {
            ProjectFile::EditorSettings | ProjectFile::EditorTasks | ProjectFile::EditorExtensions => Some(b".vscode"),
            ProjectFile::Cargo => Some(b".cargo"),
            _ => None,
        };
        let above = parent_path(path);
        if directory.is_some_and(|directory| last_component(above) != directory || above.len() <= root_length) {
            return None;
        }
        let unit = if directory == Some(b".vscode") { above.len() } else { path.len() };
        (unit > root_length).then_some((unit, Self::File(file)))
    }

    /// Returns whether the name alone permits this operation.
    pub fn allows_operation(self, operation: DeniedOperation) -> bool {
        match self {
            // Only an empty directory can be removed.
            Self::Directory => matches!(operation, DeniedOperation::Mkdir | DeniedOperation::Remove),
            Self::File(_) => operation == DeniedOperation::Remove,
            Self::Passing => {
                use DeniedOperation::{Create, Metadata, Remove, Rename, Write};
                matches!(operation, Create | Write | Rename | Remove | Metadata)
            }
        }
    }
}

/// Returns whether a file of this name is a temporary file for a checked one. Such files are those
/// of sed, and those named after the file: `settings.json.tmp.1`, `settings.json.123`.
fn is_passing(name: &[u8]) -> bool {
    const EDITOR_FILES: [&[u8]; 4] = [b"settings.json", b"tasks.json", b"launch.json", b"extensions.json"];
    if let Some(rest) = name.strip_prefix(b"sed") {
        return rest.len() == 6 && rest.iter().all(u8::is_ascii_alphanumeric);
    }
    let rest = EDITOR_FILES.iter().find_map(|file| name.strip_prefix(*file)).and_then(|rest| rest.strip_prefix(b"."));
    let is_number = |b: &u8| b.is_ascii_hexdigit() || matches!(b, b'.' | b'-');
    // Not `settings.json.`, which is another spelling of the file on some filesystems.
    rest.is_some_and(|rest| {
        rest.last().is_some_and(u8::is_ascii_alphanumeric)
            && rest.strip_prefix(b"tmp").unwrap_or(rest).iter().all(is_number)
    })
}

/// Directories of dependencies. Users do not open them in an editor or work in them.
const DEPENDENCY_DIRECTORIES: &[&[u8]] = &[b"node_modules", b"site-packages", b"dist-packages"];

/// Returns whether a directory of dependencies is between the writable root and `path`.
pub fn is_in_dependencies(path: &[u8], root_length: usize) -> bool {
    let mut ends = prefix_ends(path).into_iter().filter(|end| *end > root_length && *end < path.len());
    ends.any(|end| DEPENDENCY_DIRECTORIES.contains(&last_component(&path[..end])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: &str) -> Option<ProjectPathKind> {
        ProjectPathKind::classify_path(path.as_bytes(), 2).map(|(_, part)| part)
    }

    #[test]
    fn names_describe_their_scope() {
        use ProjectFile::*;
        for (path, expected) in [
            ("/w/.vscode", Some(ProjectPathKind::Directory)),
            ("/w/a/.vscode/settings.json", Some(ProjectPathKind::File(EditorSettings))),
            ("/w/.vscode/tasks.json", Some(ProjectPathKind::File(EditorTasks))),
            ("/w/.vscode/mcp.json", None),
            ("/w/.vscode/sedoHM9tP", Some(ProjectPathKind::Passing)),
            ("/w/.vscode/settings.json.tmp.12.1a", Some(ProjectPathKind::Passing)),
            ("/w/.vscode/tasks.json.123", Some(ProjectPathKind::Passing)),
            ("/w/.vscode/mcp.json.tmp", None),
            ("/w/.vscode/settings.json.x", None),
            ("/w/.vscode/settings.json.", None),
            ("/w/.vscode/sedoHM9tP/a", None),
            ("/w/.vscode/a/settings.json", None),
            ("/w/settings.json", None),
            // In another spelling it is the same directory on some filesystems.
            ("/w/.VSCODE/settings.json", None),
            ("/w/.idea", None),
            ("/w/.npmrc", Some(ProjectPathKind::File(Npm))),
            ("/w/.NPMRC", None),
            ("/w/sub/.tool-versions", Some(ProjectPathKind::File(ToolVersions))),
            ("/w/.cargo/config.toml", Some(ProjectPathKind::File(Cargo))),
            ("/w/cargo/config.toml", None),
            ("/w/.cargo/x/config.toml", None),
            ("/w/rust-toolchain", Some(ProjectPathKind::File(RustToolchain))),
            ("/w/.envrc", None),
        ] {
            assert_eq!(part(path), expected, "{path}");
        }
        for (path, expected) in [
            ("/w/node_modules/x/.idea", true),
            ("/w/node_modules", false),
            ("/w/x/.venv/lib/python3/site-packages/.envrc", true),
            ("/w/x/.envrc", false),
        ] {
            assert_eq!(is_in_dependencies(path.as_bytes(), 2), expected, "{path}");
        }
        assert!(!is_in_dependencies(b"/w/node_modules/x/.idea", 15));
        // The name of a root does not decide on its content.
        assert_eq!(ProjectPathKind::classify_path(b"/w/.vscode/settings.json", 10), None);
        assert_eq!(ProjectPathKind::classify_path(b"/w/.cargo/config.toml", 9), None);
    }
}
