//! Resolves the arguments: paths are made canonical, grants are parsed, names are checked. Reads
//! the machine through [`crate::locations`] and [`crate::signing_names`]. Starts nothing, asks no
//! question, and sets no default that the configuration may set.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_model::{
    Grant, LimitKind, Limits, RawText, RequestCommand, RequestId, RunRequest, SandboxId, SessionId, shell_quoted,
};

use stockade_policy::{HostEntry, PolicySettings, check_breadth};

use crate::args::{CheckArgs, CommandArgs, RunArgs, RunOptions};
use crate::failure::CliError;
use crate::locations::{self, VariableLookup};
use crate::signing_names;

/// Largest accepted command, in bytes: more than the kernel would execute (MAX_ARG_STRLEN is 128
/// KiB, execve(2)).
pub const MAX_COMMAND_BYTES: usize = 2 << 20;

/// Resolved arguments of a run. Values that the configuration may set are still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedArgs {
    /// The command to run.
    pub command: RequestCommand,
    /// Working directory, canonical.
    pub cwd: PathBuf,
    /// Workspace, the directory that may be written; canonical.
    pub workspace: PathBuf,
    /// Grants that the user added on the command line.
    pub grants: Vec<Grant>,
    /// Further grants that are requested.
    pub requested: Vec<Grant>,
    /// Lowered limits.
    pub limits: Limits,
    /// The session.
    pub session: Option<SessionId>,
    /// The other options, as typed.
    pub options: RunOptions,
}

impl ResolvedArgs {
    /// Resolves the arguments of `run`.
    ///
    /// # Errors
    /// [`CliError`] if a path, a grant or a name cannot be used.
    pub fn from_run_args(typed: RunArgs, variables: VariableLookup<'_>) -> Result<Self, CliError> {
        let resolved = Self::resolve_options(typed.options, variables)?;
        let session = match typed.session {
            Some(name) => Some(parse_session_id(&name)?),
            None => session_of_environment(variables)?,
        };
        Ok(Self { command: parse_command(typed.subject)?, session, ..resolved })
    }

    /// Resolves the options of a run without a command.
    fn resolve_options(options: RunOptions, variables: VariableLookup<'_>) -> Result<Self, CliError> {
        let cwd = locations::current_directory()?;
        let workspace = resolve_workspace(options.workspace.as_deref(), variables, &cwd)?;
        let requested = parse_grants(&options.requests, variables, &cwd, &workspace)?;
        let grants = parse_grants(&options.grants, variables, &cwd, &workspace)?;
        Ok(Self {
            command: RequestCommand::Script(RawText::default()),
            workspace,
            cwd,
            requested: subtract_grants(requested, &grants),
            grants,
            limits: combine_limits(&options.limits),
            session: None,
            options,
        })
    }

    /// Resolves the arguments of `check`, which has no grants of the user. With `--jsonl` the
    /// commands come from the stream; until then the script is empty.
    ///
    /// # Errors
    /// [`CliError`] if a path or a name cannot be used.
    pub fn from_check_args(typed: CheckArgs, variables: VariableLookup<'_>) -> Result<Self, CliError> {
        let CheckArgs { jsonl, profile, workspace, mode, requests, subject, .. } = typed;
        let command = if jsonl { None } else { Some(parse_command(subject)?) };
        let options = RunOptions { profile, workspace, mode, requests, ..RunOptions::default() };
        let resolved = Self::resolve_options(options, variables)?;
        Ok(Self { command: command.unwrap_or_else(|| resolved.command.clone()), ..resolved })
    }

    /// Returns all grants: those of the user, then the requested ones.
    pub fn all_grants(&self) -> Vec<Grant> {
        let requested = subtract_grants(self.requested.clone(), &self.grants);
        self.grants.iter().cloned().chain(requested).collect()
    }

    /// Builds the request, with configured values for absent arguments.
    pub fn build_request(
        &self,
        id: RequestId,
        environment: BTreeMap<String, RawText>,
        settings: &PolicySettings,
    ) -> RunRequest {
        RunRequest {
            id,
            session: self.session.clone(),
            command: self.command.clone(),
            cwd: self.cwd.as_path().into(),
            workspace: self.workspace.as_path().into(),
            environment,
            profile: self.options.profile.clone().unwrap_or_else(|| settings.profile.value.clone()),
            grants: self.all_grants(),
            requested: subtract_grants(self.requested.clone(), &self.grants),
            level: self.options.level.unwrap_or(settings.level.value),
            approval_mode: self.options.mode.unwrap_or(settings.approval_mode.value),
            sandbox: self.options.sandbox.unwrap_or_default(),
            timeout_ms: self.options.timeout.map(to_milliseconds),
            limits: self.limits.clone(),
            caller_approval: None,
        }
    }
}

/// Returns the grants of `requested` that are not among `grants`: the user's own grant needs no
/// question.
fn subtract_grants(mut requested: Vec<Grant>, grants: &[Grant]) -> Vec<Grant> {
    requested.retain(|grant| !grants.contains(grant));
    requested
}

/// Returns the lowest value of each limit that was named.
pub fn combine_limits(typed: &[(LimitKind, u64)]) -> Limits {
    let mut limits = Limits::default();
    for &(limit, amount) in typed {
        let mut one = Limits::default();
        one.set_limit(limit, amount);
        limits.lower_to(&one);
    }
    limits
}

/// Converts to whole milliseconds; times on the command line are at most a year.
pub fn to_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the caller's environment. Names that are not UTF-8 are left out, because no profile
/// could name them.
pub fn collect_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, RawText> {
    variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into()))).collect()
}

/// Returns a new request id.
///
/// # Errors
/// [`CliError`] if the kernel provides no random bytes.
pub fn request_id() -> Result<RequestId, CliError> {
    read_random_bytes().map(RequestId::from_random)
}

/// Returns a new session id.
///
/// # Errors
/// [`CliError`] if the kernel provides no random bytes.
pub fn session_id() -> Result<SessionId, CliError> {
    read_random_bytes().map(SessionId::from_random)
}

/// Returns a new sandbox id.
///
/// # Errors
/// [`CliError`] if the kernel provides no random bytes.
pub fn sandbox_id() -> Result<SandboxId, CliError> {
    read_random_bytes().map(SandboxId::from_random)
}

fn read_random_bytes() -> Result<[u8; 16], CliError> {
    let mut bytes = [0_u8; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(16) => Ok(bytes),
        Ok(_) => Err(CliError::new("the kernel gave too few random bytes")),
        Err(e) => Err(CliError::new(format!("the kernel gives no random bytes: {e}"))),
    }
}

/// Returns the text that the spans of findings refer to: a script, or arguments joined by single
/// spaces.
pub fn text_of(command: &RequestCommand) -> RawText {
    match command {
        RequestCommand::Script(script) => script.clone(),
        RequestCommand::Argv(words) => {
            let words: Vec<_> = words.iter().map(RawText::as_bytes).collect();
            words.join(&b' ').into()
        }
    }
}

/// Returns the command of `-c SCRIPT` or `-- CMD ARG...`.
fn parse_command(subject: CommandArgs) -> Result<RequestCommand, CliError> {
    let length = |words: &[OsString]| words.iter().map(|word| word.len() + 1).sum::<usize>();
    let command = match subject {
        CommandArgs { script: Some(script), .. } if script.len() <= MAX_COMMAND_BYTES => {
            RequestCommand::Script(script.into())
        }
        CommandArgs { script: None, words } if words.is_empty() => {
            return Err(CliError::new("there is no command").with_hint("put it after `--`, or a script after -c"));
        }
        CommandArgs { script: None, words } if length(&words) <= MAX_COMMAND_BYTES => {
            RequestCommand::Argv(words.into_iter().map(RawText::from).collect())
        }
        _ => {
            return Err(CliError::new(format!("the command is longer than {MAX_COMMAND_BYTES} bytes"))
                .with_hint("put it into a file and run that"));
        }
    };
    match &command {
        RequestCommand::Argv(words) if words.first().is_some_and(|program| program.as_bytes().is_empty()) => {
            Err(CliError::new("the program's name is empty"))
        }
        _ => Ok(command),
    }
}

/// Returns the workspace of a run with these options.
///
/// # Errors
/// [`CliError`] if it cannot be used.
pub fn workspace_of(options: &RunOptions, variables: VariableLookup<'_>) -> Result<PathBuf, CliError> {
    resolve_workspace(options.workspace.as_deref(), variables, &locations::current_directory()?)
}

fn resolve_workspace(typed: Option<&Path>, variables: VariableLookup<'_>, cwd: &Path) -> Result<PathBuf, CliError> {
    match typed {
        None => Ok(cwd.to_path_buf()),
        Some(dir) => {
            // The kernel resolves a relative path as it is: `..` after a link is the parent of the
            // target.
            let starts_at_home = dir.as_os_str().as_encoded_bytes().starts_with(b"~");
            let dir = if starts_at_home {
                locations::expand_path(dir, &|| locations::find_home_directory(variables), cwd)?
            } else {
                dir.to_path_buf()
            };
            locations::real_directory(&dir, "the workspace")
        }
    }
}

/// Parses the id or the bare name of a session: `work` means `ses_work`.
///
/// # Errors
/// [`CliError`] if it contains anything but letters, digits, `-` and `_`.
pub fn parse_session_id(name: &str) -> Result<SessionId, CliError> {
    let id = if name.starts_with("ses_") { name.to_owned() } else { format!("ses_{name}") };
    SessionId::try_from(id).map_err(|_| {
        CliError::new(format!("`{}` is not a session name", RawText::from(name).to_escaped()))
            .with_hint("a session is 1 to 64 letters, digits, `-` or `_`")
    })
}

fn session_of_environment(variables: VariableLookup<'_>) -> Result<Option<SessionId>, CliError> {
    let Some(name) = variables("STOCKADE_SESSION").filter(|name| !name.is_empty()) else { return Ok(None) };
    match name.to_str() {
        Some(name) => parse_session_id(name).map(Some),
        None => Err(CliError::new("STOCKADE_SESSION is not a session name")
            .with_hint("a session is 1 to 64 letters, digits, `-` or `_`")),
    }
}

/// Parses grants as a user types them, one by one.
///
/// # Errors
/// [`CliError`] if one is not a grant, or does not name an object.
pub fn parse_grants(
    typed: &[OsString],
    variables: VariableLookup<'_>,
    cwd: &Path,
    workspace: &Path,
) -> Result<Vec<Grant>, CliError> {
    let mut all = Vec::with_capacity(typed.len());
    for text in typed {
        match text.to_str().map(str::trim) {
            Some(name) if signing_names::is_one(name) => all.extend(signing_names::resolve_grants(name, variables)?),
            Some(group) if group.starts_with('@') => all.extend(parse_connect_grants(group, group)?),
            Some(grant_text) if grant_text.starts_with("connect ") => {
                all.extend(parse_connect_grants(grant_text, grant_text.trim_start_matches("connect").trim())?);
            }
            _ => all.push(parse_grant(text, variables, cwd, workspace)?),
        }
    }
    Ok(all)
}

/// Returns the grants to connect to named hosts, or to a shipped group of hosts. `grant_text` is the
/// whole argument. From here on only the list of hosts counts: a later change of a group does not
/// change an approval.
fn parse_connect_grants(grant_text: &str, hosts: &str) -> Result<Vec<Grant>, CliError> {
    const CONNECT_HINT: &str = "for example --grant 'connect pypi.org:443', 'connect *.example.com' or @pypi";
    let no_grant = |why: &dyn std::fmt::Display| {
        let shown = RawText::from(grant_text).to_escaped();
        CliError::new(format!("`{shown}` is not a grant: {why}")).with_hint(CONNECT_HINT)
    };
    let entry: HostEntry = hosts.parse().map_err(|why| no_grant(&why))?;
    for pattern in entry.patterns() {
        check_breadth(pattern).map_err(|why| no_grant(&why))?;
    }
    Ok(entry.patterns().iter().cloned().map(Grant::Connect).collect())
}

/// Parses a grant as a user types it. Resolves `~`, relative paths and links, and looks programs
/// up, so that the grant names an object (L5). An earlier command may have created a link inside
/// the workspace. If such a link leads out of it, the user must name the target itself.
fn parse_grant(typed: &OsStr, variables: VariableLookup<'_>, cwd: &Path, workspace: &Path) -> Result<Grant, CliError> {
    const GRANT_HINT: &str = "for example --grant 'write ~/.cache/pip' or --grant 'connect pypi.org:443'";
    let raw = RawText::from(typed);
    let text = raw.to_str().ok_or_else(|| {
        CliError::new(format!("the grant `{}` is not UTF-8", raw.to_escaped())).with_hint("write other bytes as \\xNN")
    })?;
    let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let parsed = |text: &str| {
        let grant = text.parse::<Grant>().map_err(|error| match LimitKind::from_name(word) {
            Some(_) => CliError::new(error),
            None => CliError::new(error).with_hint(GRANT_HINT),
        })?;
        if grant.is_answer_only() {
            let what =
                format!("`{}` is not a grant: an effect is approved when its question is asked", raw.to_escaped());
            return Err(CliError::new(what).with_hint("run it at a terminal"));
        }
        Ok(grant)
    };
    if !matches!(word, "write" | "read" | "socket" | "exec") || rest.trim().is_empty() {
        return parsed(text);
    }
    let path = RawText::from_escaped(rest.trim()).ok_or_else(|| {
        CliError::new(format!("`{}` holds an unknown escape", raw.to_escaped())).with_hint("write a backslash as \\\\")
    })?;
    let path = match path.as_bytes() {
        program if word == "exec" && !program.contains(&b'/') => find_program(path.as_path(), variables)?,
        _ => locations::expand_path(path.as_path(), &|| locations::find_home_directory(variables), cwd)?,
    };
    let real = locations::canonical_prefix(&path);
    if path.starts_with(workspace) && !real.starts_with(workspace) {
        let leads = format!("the grant `{}` leads through a link out of the workspace", raw.to_escaped());
        let named = shell_quoted(&format!("{word} {}", RawText::from(real).escaped_reversibly()));
        return Err(CliError::new(leads).with_hint(format!("to grant it, name the target: --grant {named}")));
    }
    let path = RawText::from(real);
    parsed(&format!("{word} {}", path.escaped_reversibly()))
}

/// Finds a program in `PATH`, as execvp(3) does.
fn find_program(program: &Path, variables: VariableLookup<'_>) -> Result<PathBuf, CliError> {
    let path = variables("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            CliError::new(format!("no program {} in PATH", crate::failure::quote_path(program)))
                .with_hint("write its path in full")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<OsString> {
        None
    }

    #[track_caller]
    fn check_grant(typed: &str, expected: &str) {
        let variables = |name: &str| match name {
            "HOME" => Some(OsString::from("/usr")),
            "PATH" => Some(OsString::from("relative:/nonexistent:/bin")),
            _ => None,
        };
        let shown = parse_grant(OsStr::new(typed), &variables, Path::new("/usr/share"), Path::new("/usr/share"));
        assert_eq!(shown.unwrap().to_string(), expected, "{typed}");
    }

    #[test]
    fn grants_name_objects() {
        check_grant("write ~/new/file", "write /usr/new/file");
        check_grant("write ../lib/./x", "write /usr/lib/x");
        check_grant("read   /usr/./share", "read /usr/share");
        check_grant("write a b", "write /usr/share/a b");
        check_grant("write /usr/a\\nb", "write /usr/a\\nb");
        check_grant(r"write /usr/a\x20", r"write /usr/a\x20");
        // /bin is a link on merged systems, and sh often is one too.
        let sh = Path::new("/bin/sh").canonicalize().unwrap();
        check_grant("exec sh", &format!("exec {}", sh.display()));
    }

    #[test]
    fn grants_name_hosts_or_groups_of_them() {
        let shown = |typed: &str| {
            let grants = parse_grants(&[typed.into()], &nothing, Path::new("/"), Path::new("/usr"));
            grants.map(|grants| grants.iter().map(Grant::to_string).collect::<Vec<_>>().join(", "))
        };
        assert_eq!(shown("connect PyPI.org:443").unwrap(), "connect pypi.org:443");
        assert_eq!(shown(" connect  a_b:80,443").unwrap(), "connect a_b:80,443");
        for pypi in ["connect @pypi", "@pypi", " @pypi ", "@python"] {
            assert_eq!(shown(pypi).unwrap(), "connect pypi.org:443, connect files.pythonhosted.org:443", "{pypi}");
        }
        for (typed, why) in [
            ("connect https://pypi.org", "write a host without scheme and path: `pypi.org:443`"),
            ("@npmm", "there is no such group; did you mean `@npm`?"),
            ("connect @pypy", "there is no such group; did you mean `@pypi`?"),
            ("connect pypi.org:https", "a port is a number from 1 to 65535"),
            (
                "connect 127.1:80",
                "it ends in a number but is not an address: write four decimal numbers, e.g. `127.0.0.1`",
            ),
            ("connect **.com", "`**.com` is too wide: anyone can register a name under `com`, a public suffix"),
        ] {
            let failure = shown(typed).unwrap_err();
            assert_eq!(failure.what, format!("`{typed}` is not a grant: {why}"));
            assert!(failure.hint.is_some());
        }
        assert!(shown("connect a\u{1b}b").unwrap_err().what.starts_with("`connect a\\u{1b}b` is not a grant"));
    }

    #[test]
    fn a_link_is_not_the_object() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/usr", real.join("link")).unwrap();
        let got = parse_grant(OsStr::new("write link/x"), &nothing, &real, Path::new("/usr")).unwrap();
        assert_eq!(got.to_string(), "write /usr/x");
    }

    /// The name of the target is the command's choice, and the hint is there to be copied.
    #[test]
    fn the_target_of_a_link_stays_in_its_quotes() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        for (target, shown) in [("out'; touch ran; : '", r"out'\''; touch ran; : '\''"), ("a\n ", r"a\n\x20")] {
            let workspace = real.join("sub");
            std::fs::create_dir_all(real.join(target)).unwrap();
            std::fs::create_dir_all(&workspace).unwrap();
            std::os::unix::fs::symlink(real.join(target), workspace.join("out")).unwrap();
            let failure = parse_grant(OsStr::new("write out"), &nothing, &workspace, &workspace).unwrap_err();
            let expected = format!("to grant it, name the target: --grant 'write {}/{shown}'", real.display());
            assert_eq!(failure.hint.as_deref(), Some(expected.as_str()));
            std::fs::remove_file(workspace.join("out")).unwrap();
        }
    }

    #[test]
    fn malformed_grants_are_refused() {
        for bad in ["", "write", "write ~nobody/x", "write /a\\q", "exec no-such-program-here", "sudo", "connect"] {
            assert!(parse_grant(OsStr::new(bad), &nothing, Path::new("/"), Path::new("/usr")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sessions() {
        assert_eq!(parse_session_id("work").unwrap().as_str(), "ses_work");
        assert_eq!(parse_session_id("ses_work").unwrap().as_str(), "ses_work");
        for bad in ["", "../x", "a b", "\u{1b}[2J"] {
            assert!(parse_session_id(bad).is_err(), "{bad:?}");
        }
        let set = |name: &str| (name == "STOCKADE_SESSION").then(|| OsString::from("a/b"));
        assert!(session_of_environment(&set).is_err());
    }

    #[test]
    fn commands() {
        let words = |words: &[&str]| CommandArgs { script: None, words: words.iter().map(OsString::from).collect() };
        assert!(parse_command(words(&[])).is_err());
        assert!(parse_command(words(&[""])).is_err());
        assert!(parse_command(words(&["true", ""])).is_ok());
        assert!(parse_command(words(&["x".repeat(MAX_COMMAND_BYTES).as_str()])).is_err());
        let script = CommandArgs { script: Some(" ls\n".into()), words: Vec::new() };
        assert_eq!(parse_command(script), Ok(RequestCommand::Script(" ls\n".into())));
    }

    #[test]
    fn request_ids_differ() {
        assert_ne!(request_id().unwrap(), request_id().unwrap());
    }
}
