//! Files of a project that run code when the project is built, tested, installed or started.

use std::sync::LazyLock;

use crate::data::table_rows;

/// Names of such files, each with its tool. An entry with `/` at its end is a directory, and every file in
/// it counts. An entry with `/` inside is a file in a directory of that name.
pub static PROJECT_FILES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    table_rows(include_str!("../data/project_files.txt")).filter_map(|row| row.split_once(' ')).collect()
});

/// Directories of dependencies and of build output, which tools fill with thousands of files.
const EXCLUDED_DIRECTORIES: &[&str] = &["node_modules", "site-packages", "dist-packages", "target", "vendor", ".git"];

/// Returns whether the file at `path`, relative to its workspace, runs code when the project is built,
/// tested, installed or started. Only names are checked.
pub fn is_project_file(path: &[u8]) -> bool {
    let is_entry = |entry: &str| match entry.strip_suffix('/') {
        Some(directory) => is_inside_directory(path, directory.as_bytes()),
        None => path.strip_suffix(entry.as_bytes()).is_some_and(|before| matches!(before, [] | [.., b'/'])),
    };
    let is_listed = PROJECT_FILES.iter().any(|(entry, _)| is_entry(entry));
    is_listed && !EXCLUDED_DIRECTORIES.iter().any(|directory| is_inside_directory(path, directory.as_bytes()))
}

/// Returns whether `directory` is a parent directory of `path`.
fn is_inside_directory(path: &[u8], directory: &[u8]) -> bool {
    let mut starts = (0..path.len()).filter(|at| *at == 0 || path[at - 1] == b'/');
    starts.any(|at| path[at..].strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_file() {
        let rows = table_rows(include_str!("../data/project_files.txt")).count();
        assert_eq!((rows, PROJECT_FILES.len()), (43, 43));
    }

    #[test]
    fn files_that_run_later_are_recognized_by_name() {
        for path in ["Makefile", "sub/Makefile", ".github/workflows/ci.yml", "a/.husky/_/x", "a/.vscode/tasks.json"] {
            assert!(is_project_file(path.as_bytes()), "{path}");
        }
        let others = ["Makefile.txt", "src/xMakefile", ".husky", "tasks.json", "node_modules/x/package.json", ""];
        for path in others {
            assert!(!is_project_file(path.as_bytes()), "{path}");
        }
    }
}
