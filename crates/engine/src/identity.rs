//! Identity of the program that a remembered approval is for. The identity covers the program and
//! each file that an interpreter or wrapper in the command runs. If any of them changes, the
//! approval no longer applies and a question is put again. If the files cannot be determined, no
//! approval is remembered. Only consent depends on this, never containment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_backend_api::ServedMounts;
use stockade_backend_api::identity::{MAX_WORDS, paths_in, pieces_of};
use stockade_model::{Assessment, Capability, Digest, NameList, RawText, RequestCommand, table_rows};
use stockade_policy::amend::runs_others;
use stockade_shell::StdinUse;

/// Files up to this size are bound by content; larger files by identity and times, so that an
/// assessment never reads a large binary.
const CONTENT_LIMIT_BYTES: u64 = 256 << 10;
/// Most files that are bound.
const MAX_FILES: usize = 64;
/// Words that change the directory of later relative paths.
const DIRECTORY_CHANGE_WORDS: &[&[u8]] = &[b"cd", b"pushd", b"popd", b"-C", b"--chdir", b"--directory"];
/// Files that a program reads its code from without an argument.
const IMPLICIT_FILES: &str = include_str!("../data/implicit_files.txt");
/// Bytes that stand for content outside the text.
const DYNAMIC_BYTES: &[u8] = b"$`*?~";
/// Findings in the text that make the program to run unknown.
const UNREAD_FINDINGS: &[&str] =
    &["not-understood", "too-much-to-review", "too-deep", "dynamic-program", "calls-function"];

/// Findings that a program may run a file named in its words, whatever the file's mode.
const FILE_RUNNING_FINDINGS: NameList = NameList::new(include_str!("../data/file_running_findings.txt"));

/// Identity that an approval of a run would be bound to.
pub(crate) struct RunIdentity {
    /// Digest of the program, and of the files that it would run.
    pub digest: Digest,
    /// True if the digest covers everything that would run.
    pub is_whole: bool,
}

/// The program of a plan.
pub(crate) struct PlanProgram<'a> {
    /// The final words, and the command as requested.
    pub argv: &'a [RawText],
    pub command: &'a RequestCommand,
    /// Variables and directory to find the program.
    pub environment: &'a BTreeMap<String, RawText>,
    pub cwd: &'a Path,
}

/// Returns the identity of the program of a plan as it is now.
pub(crate) fn identify_program(program: &PlanProgram<'_>, assessment: &Assessment, takes: StdinUse) -> RunIdentity {
    let PlanProgram { argv, command, environment, cwd } = *program;
    let served = ServedMounts::read_current(cwd);
    let mut search = FileSearch { environment, cwd, served, files: BTreeSet::new(), is_whole: true };
    search.bind_program(argv.first().map(RawText::as_path));
    let programs: Vec<&RawText> = assessment
        .capabilities
        .iter()
        .filter_map(|needed| if let Capability::Execute(program) = needed { Some(program) } else { None })
        .collect();
    for program in &programs {
        search.bind_program(Some(program.as_path()));
    }
    let is_script = matches!(command, RequestCommand::Script(_));
    // The first word of a script is the shell, which runs the script's code.
    let first = argv.first().filter(|_| !is_script);
    let all = || programs.iter().copied().chain(first);
    let interpreted = all().any(|program| name_of(program).is_some_and(|name| runs_others(&name).is_some()));
    let found_code = search.bind_implicit_files(all());
    let words: Vec<&[u8]> = match command {
        RequestCommand::Script(text) => vec![text.as_bytes()],
        RequestCommand::Argv(words) => words.iter().skip(1).map(RawText::as_bytes).collect(),
    };
    if is_script || interpreted {
        let unread = assessment.findings.iter().any(|found| UNREAD_FINDINGS.contains(&found.code.as_str()));
        search.is_whole &= !unread && takes == StdinUse::Data;
        let by_path = all().any(|program| program.as_bytes().contains(&b'/'));
        search.bind_named_files(&words, is_script, interpreted && !found_code, interpreted || by_path);
    } else {
        let codes = || assessment.findings.iter().map(|found| found.code.as_str());
        // Git runs its hooks; the files in its arguments are data.
        let is_git = all().any(|program| name_of(program).as_deref() == Some("git"));
        search.started_by_unknown(
            &words,
            codes().any(|code| FILE_RUNNING_FINDINGS.contains(code) || code == "runs-code" && !is_git),
        );
    }
    let fields: Vec<Vec<u8>> = search.files.iter().map(|path| fingerprint_file(path)).collect();
    RunIdentity {
        digest: Digest::of_fields("stockade-identity-2", fields.iter().map(Vec::as_slice)),
        is_whole: search.is_whole,
    }
}

/// Search for the files that a command would run.
struct FileSearch<'a> {
    environment: &'a BTreeMap<String, RawText>,
    cwd: &'a Path,
    /// Paths that are not examined, because the access may block forever.
    served: ServedMounts,
    files: BTreeSet<PathBuf>,
    is_whole: bool,
}

impl FileSearch<'_> {
    fn bind_program(&mut self, program: Option<&Path>) {
        if let Some(program) = program {
            self.bind_file(resolve_program(program, self.environment, self.cwd));
        }
    }

    /// Returns the metadata of a path. If the path cannot be examined, the program to run counts as
    /// unknown.
    fn look_at(&mut self, path: &Path) -> Option<fs::Metadata> {
        if self.served.covers_path(path) {
            self.is_whole = false;
            return None;
        }
        fs::metadata(path).ok()
    }

    fn bind_file(&mut self, file: PathBuf) {
        if self.served.covers_path(&file) {
            self.is_whole = false;
            return;
        }
        if self.files.len() < MAX_FILES || self.files.contains(&file) {
            self.files.insert(file);
        } else {
            self.is_whole = false;
        }
    }

    /// Binds the files that a program reads its code from without an argument. Returns whether one
    /// exists.
    fn bind_implicit_files<'p>(&mut self, programs: impl Iterator<Item = &'p RawText>) -> bool {
        let mut found = false;
        for name in programs.filter_map(name_of) {
            let files_of = |row: &'static str| row.split_once(' ').filter(|(program, _)| *program == name);
            let files = table_rows(IMPLICIT_FILES).filter_map(files_of).flat_map(|(_, files)| files.split(' '));
            for file in files.map(|file| self.cwd.join(file)).collect::<Vec<_>>() {
                found |= file.is_file();
                self.bind_file(file);
            }
        }
        found
    }

    /// Binds the files that an unknown program may start. These are executable files, or every file
    /// if the program may run one or an interpreter is among the words.
    fn started_by_unknown(&mut self, words: &[&[u8]], runs_named: bool) {
        let names = |word: &[u8]| name_of(&RawText::from(word)).is_some_and(|name| runs_others(&name).is_some());
        let all = runs_named || words.iter().any(|word| names(word));
        let mut seen = 0;
        for piece in words.iter().copied().flat_map(pieces_of) {
            seen += 1;
            if seen > MAX_WORDS {
                self.is_whole = false;
                break;
            }
            for path in paths_in(piece, self.cwd) {
                if self.look_at(&path).is_some_and(|file| file.is_file() && (all || file.mode() & 0o111 != 0)) {
                    self.bind_file(path);
                }
            }
        }
    }

    /// Binds every file that is named in the words. If `needs_code`, the code must be in the words
    /// or in such a file. If `runs_files`, the words must name the files.
    fn bind_named_files(&mut self, words: &[&[u8]], is_script: bool, needs_code: bool, runs_files: bool) {
        let (mut found_code, mut moved, mut dynamic) = (false, false, false);
        let mut seen = 0;
        for word in words {
            // Code in a word of its own, as in `-c CODE`, is bound by the text.
            found_code |= match is_script {
                true => word.iter().any(|byte| b"'\"".contains(byte)),
                false => word.iter().any(|byte| b" \t\n();".contains(byte)),
            };
            dynamic |= word.iter().any(|byte| DYNAMIC_BYTES.contains(byte));
            for piece in pieces_of(word) {
                seen += 1;
                moved |= DIRECTORY_CHANGE_WORDS.contains(&piece);
                for path in paths_in(piece, self.cwd) {
                    if self.look_at(&path).is_some_and(|file| file.is_file()) {
                        found_code = true;
                        self.bind_file(path);
                    }
                }
            }
        }
        self.is_whole &= seen <= MAX_WORDS && !(runs_files && (moved || dynamic)) && (found_code || !needs_code);
    }
}

/// The last part of a program's name.
fn name_of(program: &RawText) -> Option<String> {
    Some(program.to_str()?.rsplit('/').next()?.to_owned())
}

/// Returns the path at which execvp(3) would find the program.
fn resolve_program(program: &Path, environment: &BTreeMap<String, RawText>, cwd: &Path) -> PathBuf {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return cwd.join(program);
    }
    let search = environment.get("PATH").map(RawText::as_bytes).unwrap_or_default();
    search
        .split(|byte| *byte == b':')
        .map(|directory| cwd.join(RawText::from(directory).as_path()).join(program))
        .find(|candidate| fs::metadata(candidate).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0))
        .unwrap_or_else(|| program.to_owned())
}

/// Returns path, file, size and times; for a small file also its content. An unreadable file is
/// bound by its visible attributes.
fn fingerprint_file(path: &Path) -> Vec<u8> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut text = RawText::from(path.as_path()).escaped_reversibly();
    let Ok(found) = fs::metadata(&path) else { return text.into_bytes() };
    text.push_str(&format!(
        "\0{}:{}\0{}\0{}.{}\0{}.{}",
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec()
    ));
    let mut bytes = text.into_bytes();
    if found.is_file() && found.size() <= CONTENT_LIMIT_BYTES {
        bytes.push(0);
        if let Ok(file) = File::open(&path) {
            // Bytes read before an error still bind.
            let _ = file.take(CONTENT_LIMIT_BYTES).read_to_end(&mut bytes);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use stockade_shell::CommandContext;

    use super::*;

    fn of(cwd: &Path, command: &RequestCommand) -> RunIdentity {
        let here = RawText::from(cwd);
        let context =
            CommandContext { cwd: here.clone(), home: "/nowhere".into(), workspace: here.clone(), sanitized: false };
        let (argv, classification) = match command {
            RequestCommand::Argv(argv) => (argv.clone(), stockade_shell::classify_argv(argv, &context)),
            RequestCommand::Script(text) => {
                let argv = vec!["/bin/sh".into(), "-c".into(), text.clone()];
                (argv, stockade_shell::classify_script(text.as_bytes(), &context))
            }
        };
        let environment = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".into())]);
        let program = PlanProgram { argv: &argv, environment: &environment, cwd, command };
        identify_program(&program, &classification.assessment, stockade_shell::stdin_use(command, &context))
    }

    #[test]
    fn a_script_behind_a_wrapper_is_bound_or_nothing_is_remembered() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let cwd = directory.path();
        let write = |text: &str| assert!(fs::write(cwd.join("x.sh"), text).is_ok());
        let bound = [
            "bash x.sh",
            "env bash x.sh",
            "timeout 5 ./x.sh",
            "nice ./x.sh",
            "nice -n 5 sh x.sh",
            "awk -f x.sh",
            "awk -fx.sh",
            "sh -c './x.sh'",
            "./x.sh",
            "ld.so ./x.sh",
            "env -S 'bash x.sh'",
            "unknown-wrapper bash x.sh",
        ];
        let unbound = [
            "xargs sh",
            "sh",
            "sh -c 'cd d; ./x.sh'",
            "sh -c '. ./$X'",
            "python3 -m mod",
            "bash *.sh",
            "env -C d ./x.sh",
        ];
        for text in bound.iter().chain(&unbound) {
            let words = text.split('\'').enumerate().flat_map(|(index, part)| match index % 2 {
                0 => part.split_whitespace().map(RawText::from).collect::<Vec<_>>(),
                _ => vec![RawText::from(part)],
            });
            for command in [RequestCommand::Argv(words.collect()), RequestCommand::Script((*text).into())] {
                write("echo one");
                let before = of(cwd, &command);
                write("echo two; echo three");
                let after = of(cwd, &command);
                assert_eq!(after.is_whole, bound.contains(text), "{command:?}");
                assert!(!after.is_whole || before.digest != after.digest, "{command:?}");
            }
        }
        for text in ["touch a", "git push", "sh -c 'echo a; touch b'", "python3 -c 'print(1)'"] {
            let words = text.split('\'').enumerate().flat_map(|(index, part)| match index % 2 {
                0 => part.split_whitespace().map(RawText::from).collect::<Vec<_>>(),
                _ => vec![RawText::from(part)],
            });
            let command = RequestCommand::Argv(words.collect());
            let (before, after) = (of(cwd, &command), of(cwd, &command));
            assert!(after.is_whole && before.digest == after.digest, "{text}");
        }
    }

    /// However the script is started: if the answer is remembered, it is bound to the script.
    #[test]
    fn no_answer_outlives_a_script_that_was_replaced() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let cwd = directory.path();
        let write = |text: &str| assert!(fs::write(cwd.join("x.sh"), text).is_ok());
        assert!(fs::create_dir(cwd.join("d")).is_ok());
        let table = include_str!("identity_table.txt");
        let (mut rows, mut whole_count, mut wrong) = (0, 0, String::new());
        let mut shell_only = false;
        for text in table.lines().filter(|line| !line.is_empty()) {
            if text.starts_with('#') {
                shell_only = text.contains("the shell's own words");
                continue;
            }
            let words = RequestCommand::Argv(text.split_whitespace().map(RawText::from).collect());
            let commands = [Some(RequestCommand::Script(text.into())), Some(words).filter(|_| !shell_only)];
            for command in commands.into_iter().flatten() {
                write("echo one");
                let before = of(cwd, &command);
                write("echo two; echo three");
                let after = of(cwd, &command);
                rows += 1;
                whole_count += usize::from(after.is_whole);
                if after.is_whole && before.digest == after.digest {
                    wrong.push_str(&format!("{command:?}\n"));
                }
            }
        }
        assert!(wrong.is_empty(), "kept for another script:\n{wrong}");
        // Control: answers are remembered if the script is known.
        assert!(rows > 100 && whole_count > 40, "{whole_count} of {rows} are kept");
    }
}
