//! Suggests a profile that lets runs read no other files of users than those that traced runs read.
//!
//! The system stays readable; the directories that contain users' files are hidden. In these, the workspace
//! and each file that was read are revealed. A directory that was only listed needs no entry: it shows its
//! revealed content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stockade_model::{Grant, RawText};

use super::{
    MAX_POWERS, MIN_FILES_FOR_DIRECTORY, PathGeneralisation, PolicySuggestion, SuggestionBuilder, SuggestionData,
};

/// Adds `hide` and `reveal`. Each path of `hideable` is hidden, and the home directory.
pub(super) fn suggest_reads(
    maker: &SuggestionBuilder<'_>,
    hideable: &[PathBuf],
    generalise: bool,
    suggestion: &mut PolicySuggestion,
) {
    let home = maker.settings.home();
    let mut hidden: BTreeSet<&Path> = hideable.iter().map(PathBuf::as_path).chain([home]).collect();
    let all = hidden.clone();
    hidden.retain(|path| !all.iter().any(|other| other != path && path.starts_with(other)));
    let is_hidden = |path: &Path| hidden.iter().any(|root| path.starts_with(root));
    let is_available = |path: &Path| path.starts_with(maker.workspace) || is_written(maker, path);
    let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
    let mut many: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for (path, reading) in maker.learned.reads.iter().filter(|(path, _)| is_hidden(path) && !is_available(path)) {
        if reading.directory && reading.files == 0 {
            continue;
        }
        let grant = Grant::Read(path.clone());
        let holds_hidden = || reading.files > 0 && !may_stand(maker, &hidden, path);
        if maker.learned.refused.contains_key(&grant) {
            suggestion.left_out.push((grant, "it was also refused"));
        } else if let Some(why) = maker.find_guard_reason(&grant) {
            suggestion.left_out.push((grant, why));
        } else if holds_hidden() {
            suggestion.left_out.push((grant, "too many files were read there, and the directory contains more"));
        } else if reading.files > 0 && !generalise {
            suggestion.left_out.push((grant, "too many files to list: with --generalise the directory covers them"));
        } else if paths.len() >= MAX_POWERS {
            suggestion.left_out.push((grant, "there are too many"));
        } else if reading.files > 0 {
            many.insert(path.clone(), reading.files);
        } else {
            paths.insert(path.clone());
        }
    }
    if generalise {
        let made = generalise_reads(maker, &hidden, &mut paths, many);
        suggestion.generalised.extend(made);
    }
    for path in &hidden {
        maker.push(suggestion, "hide", path);
    }
    if is_hidden(maker.workspace) {
        suggestion.profile.entry("reveal").or_default().push("./".to_owned());
    }
    let revealed: BTreeSet<String> = suggestion.profile.get("reveal").into_iter().flatten().cloned().collect();
    for path in paths.iter().filter(|path| !revealed.contains(&maker.format_path(path))) {
        maker.push(suggestion, "reveal", path);
    }
}

/// Returns whether a path can be written, and so read.
fn is_written(maker: &SuggestionBuilder<'_>, path: &Path) -> bool {
    maker.profile.filesystem.write.iter().any(|root| path.starts_with(root.as_path()))
}

/// Returns whether a directory may replace the files that were read in it. The directory must not contain a
/// hidden root, a credential, or a refused or left-out power.
fn may_stand(maker: &SuggestionBuilder<'_>, hidden: &BTreeSet<&Path>, directory: &Path) -> bool {
    let is_around = |path: &Path| path.starts_with(directory);
    let refused = |grant: &Grant| grant.path().is_some_and(is_around);
    !hidden.iter().any(|root| is_around(root))
        && hidden.iter().any(|root| directory.starts_with(root))
        && !is_around(maker.workspace)
        && !maker.profile.filesystem.hide.iter().any(|path| is_around(path.as_path()))
        && !maker.learned.refused.keys().any(refused)
        && !maker
            .learned
            .reads
            .keys()
            .any(|path| is_around(path) && maker.find_guard_reason(&Grant::Read(path.clone())).is_some())
        && maker.find_guard_reason(&Grant::Read(directory.to_owned())).is_none()
}

/// Returns directories that replace three or more of their direct children that were read, from the deepest
/// up.
fn generalise_reads(
    maker: &SuggestionBuilder<'_>,
    hidden: &BTreeSet<&Path>,
    paths: &mut BTreeSet<PathBuf>,
    many: BTreeMap<PathBuf, u64>,
) -> Vec<PathGeneralisation> {
    let mut stands: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for directory in many.into_keys() {
        stands.insert(directory.clone(), vec![directory.clone()]);
        paths.insert(directory);
    }
    let mut depth = paths.iter().map(|path| path.components().count()).max().unwrap_or(0);
    while depth > 1 {
        let mut by_directory: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for path in paths.iter().filter(|path| path.components().count() == depth) {
            if let Some(directory) = path.parent() {
                by_directory.entry(directory.to_owned()).or_default().push(path.clone());
            }
        }
        for (directory, from) in by_directory {
            if from.len() >= MIN_FILES_FOR_DIRECTORY && may_stand(maker, hidden, &directory) {
                let mut all = Vec::new();
                for path in from {
                    paths.remove(&path);
                    all.extend(stands.remove(&path).unwrap_or_else(|| vec![path]));
                }
                paths.insert(directory.clone());
                stands.insert(directory, all);
            }
        }
        depth -= 1;
    }
    let made = stands.into_iter().map(|(directory, from)| PathGeneralisation { directory, from, reads: true });
    made.collect()
}

impl SuggestionData {
    /// Returns the program that read a path, as a comment after an entry with this ending.
    pub(super) fn reader_of(&self, ends: &str) -> String {
        let found = self.reads.iter().find(|(path, _)| path.display().to_string().ends_with(ends));
        match found.and_then(|(_, reading)| reading.program.as_ref().map(|program| (program, &reading.request))) {
            Some((program, request)) if !ends.is_empty() && ends != "./" => {
                format!(" # read by {}, {request}", RawText::to_escaped(program))
            }
            _ => String::new(),
        }
    }
}
