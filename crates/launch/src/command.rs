//! The part of a start that concerns the command alone: program, arguments, environment, working
//! directory, limits and filter. The init sets up the isolation around it by steps.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit};
use stockade_limits::{resource_limits, small_disk};
use stockade_model::{AttemptPlan, RawText};
use stockade_sys::bpf::SeccompProgram;
use stockade_sys::exec::{ProgramImage, StringList};

use crate::filter::{FilterOptions, FilterSize, command_filter};

use super::blueprint::PrivateTree;
use super::error::LaunchError;
use super::layout::{ObjectIdentity, c_string, is_staged};
use super::options::LaunchOptions;

/// Default `PATH`: the directories to search for a program that is named without a directory.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// A command that is ready to become a process.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    pub(super) candidates: Vec<CString>,
    pub(super) arguments: StringList,
    pub(super) environment: StringList,
    pub(super) cwd: CString,
    /// Absent if the working directory is private, new or staged.
    pub(super) cwd_identity: Option<ObjectIdentity>,
    /// True if a terminal among the standard streams becomes the controlling terminal.
    pub(super) terminal: bool,
    /// File mode creation mask, if it differs from the supervisor's.
    pub(super) umask: Option<u32>,
    pub(super) limits: Vec<(Resource, Rlimit)>,
    /// True if the init reports the bytes written by the processes that it has reaped.
    pub(super) counts_writes: bool,
    pub(super) filter: SeccompProgram,
    pub(super) filter_size: FilterSize,
}

impl PreparedCommand {
    /// Makes the command of `plan`. `candidates` are the programs to try; `own` is the directory of
    /// the files that the run is given.
    pub(super) fn new(
        plan: &AttemptPlan,
        candidates: Vec<CString>,
        launch_options: &LaunchOptions,
        own: &Path,
        temp: Option<&Path>,
    ) -> Result<Self, LaunchError> {
        let mut environment = launch_options.build_environment(plan, own);
        if let Some(directory) = temp {
            // Without a mount namespace of its own, the run learns its temporary directory from a
            // variable.
            environment.insert("TMPDIR".to_owned(), directory.to_owned().into());
        }
        let (filter, filter_size) = command_filter(
            plan.level,
            FilterOptions {
                traced: launch_options.asks_reads(plan),
                own_network: launch_options.own_network,
                small_disk: small_disk(&plan.profile.limits).is_some(),
            },
        )?;
        Ok(Self {
            candidates,
            arguments: build_arguments(plan)?,
            environment: build_environment(&environment)?,
            cwd: c_string(plan.cwd.as_os_str())?,
            cwd_identity: None,
            terminal: launch_options.terminal,
            umask: launch_options.umask,
            counts_writes: small_disk(&plan.profile.limits).is_some(),
            limits: resource_limits(&plan.profile.limits, plan.level, launch_options.asks),
            filter,
            filter_size,
        })
    }
}

/// Returns the program, arguments and environment of a plan, with no additions to the plan.
pub fn build_image(plan: &AttemptPlan) -> Result<ProgramImage, LaunchError> {
    let candidates = find_candidates(plan)?;
    Ok(ProgramImage {
        candidates,
        arguments: build_arguments(plan)?,
        environment: build_environment(&plan.environment)?,
    })
}

fn build_arguments(plan: &AttemptPlan) -> Result<StringList, LaunchError> {
    string_list(plan.argv.iter().map(|a| a.as_bytes().to_vec()))
}

fn build_environment(environment: &BTreeMap<String, RawText>) -> Result<StringList, LaunchError> {
    string_list(environment.iter().map(|(k, v)| [k.as_bytes(), b"=", v.as_bytes()].concat()))
}

/// Returns the paths to execute, in order. A name with a slash is the only one. Another name is
/// looked up in each directory of PATH.
pub(super) fn find_candidates(plan: &AttemptPlan) -> Result<Vec<CString>, LaunchError> {
    // A relative directory is relative to the command's working directory, not the caller's.
    let mut names = every_candidate(plan)?;
    let last = names.last().cloned();
    names.retain(|name| plan.cwd.as_path().join(std::ffi::OsStr::from_bytes(name.as_bytes())).metadata().is_ok());
    // The kernel then reports that the program does not exist.
    if names.is_empty() { Ok(last.into_iter().collect()) } else { Ok(names) }
}

/// As [`find_candidates`], if the caller cannot see the files of the run: no path is left out.
pub(super) fn every_candidate(plan: &AttemptPlan) -> Result<Vec<CString>, LaunchError> {
    let program = plan.argv.first().filter(|p| !p.as_bytes().is_empty());
    let program = program.ok_or_else(|| LaunchError::Unfit("there is no program to run".to_owned()))?;
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program.as_os_str())?]);
    }
    let path = plan.environment.get("PATH").map_or(DEFAULT_PATH, RawText::as_bytes);
    let directories = path.split(|b| *b == b':').map(|directory| if directory.is_empty() { b"." } else { directory });
    directories
        .map(|directory| {
            c_string(Path::new(std::ffi::OsStr::from_bytes(directory)).join(program.as_os_str()).as_os_str())
        })
        .collect()
}

/// Returns the device and inode of the working directory. A directory that is made for the run has
/// none yet.
pub(super) fn cwd_identity(plan: &AttemptPlan, private: &[PrivateTree]) -> Result<Option<ObjectIdentity>, LaunchError> {
    let path = plan.cwd.as_path();
    // The directories of an overlay have device and inode numbers of their own.
    if is_staged(plan) && path.starts_with(plan.workspace.as_path()) {
        return Ok(None);
    }
    let fresh = path.starts_with("/proc") || path.starts_with("/dev") || private.iter().any(|t| t.path == path);
    if fresh {
        return Ok(None);
    }
    let why = |e: std::io::Error| LaunchError::Path { path: PathBuf::from(path), why: e.to_string() };
    let metadata = path.metadata().map_err(why)?;
    Ok(Some(ObjectIdentity { device: metadata.dev(), inode: metadata.ino() }))
}

fn string_list(strings: impl Iterator<Item = Vec<u8>>) -> Result<StringList, LaunchError> {
    let nul = |_| LaunchError::Unfit("a NUL byte cannot be passed to a program".to_owned());
    Ok(StringList::new(strings.map(|s| CString::new(s).map_err(nul)).collect::<Result<_, _>>()?))
}
