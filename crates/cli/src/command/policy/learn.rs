//! `stockade policy suggest`: the smallest profile that would have allowed the grants and refusals
//! of a session. It is shown, never written.

use std::path::{Path, PathBuf};

use stockade_audit::EntryContent;
use stockade_model::EventKind;
use stockade_policy::suggest::{PathGeneralisation, SuggestionData, suggest_policy as smallest};

use super::load_settings;
use crate::command::{CommandResult, audit, print_output, print_remark};
use crate::exit;
use crate::failure::CliError;
use crate::policy_args::PolicySuggestArgs;
use crate::render::policy as text;

/// Most entries of a directory that are examined, and shown.
const MAX_EXAMINED_ENTRIES: usize = 10_000;
const MAX_SHOWN_ENTRIES: usize = 20;

/// Suggests a profile.
///
/// # Errors
/// [`CliError`] if the audit log or the configuration cannot be used.
pub fn suggest_profile(typed: &PolicySuggestArgs) -> CommandResult {
    let filter = audit::filter_entries(typed.request.as_deref(), typed.session.as_deref(), None)?;
    let mut learned = SuggestionData::default();
    let mut workspaces: Vec<PathBuf> = Vec::new();
    let mut any = false;
    for entry in audit::query_own_log(filter)? {
        if let EntryContent::Event { event, .. } = entry?.content {
            any = true;
            if let EventKind::Requested { request, .. } = &event.kind {
                let workspace = request.workspace.as_path().to_owned();
                if !workspaces.contains(&workspace) {
                    workspaces.push(workspace);
                }
            }
            learned.add_event(&event);
        }
    }
    if !any {
        return Err(
            CliError::new("the audit log has no entry of it").with_hint("`stockade audit show` shows all entries")
        );
    }
    let workspace = match (&typed.workspace, workspaces.as_slice()) {
        (Some(dir), _) => super::resolve_workspace(Some(dir))?,
        (None, [one]) => one.clone(),
        (None, _) => {
            return Err(CliError::new("it ran in several workspaces").with_hint("name one with --workspace"));
        }
    };
    let settings = load_settings(&workspace, None)?;
    let suggestion =
        smallest(&settings, &learned, &typed.base, &workspace, (typed.generalise, &list_user_directories()));
    let mut remark = String::new();
    for made in &suggestion.generalised {
        remark += &text::format_generalisation(made, &newly_allowed(made));
    }
    for (grant, why) in &suggestion.left_out {
        remark += &format!("left out: {grant}: {why}\n");
    }
    for grant in &suggestion.refused {
        remark += &format!("refused, and remains refused: {grant}\n");
    }
    if suggestion.is_empty() {
        print_remark(&(remark + "nothing to suggest: the profile already allows what was approved\n"));
        return Ok(exit::SUCCESS);
    }
    let shown = suggestion.to_toml(&typed.name, &typed.base, &learned);
    // The suggestion must be a valid configuration.
    stockade_policy::load::load_with(
        &super::locate_policy_sources(&workspace)?,
        vec![stockade_policy::LayerText {
            layer: stockade_policy::ConfigLayer::System,
            path: PathBuf::from("the suggestion"),
            source: shown.clone(),
        }],
    )?;
    print_output(&shown)?;
    print_remark(&remark);
    Ok(exit::SUCCESS)
}

/// Returns the existing directories of user files. The suggested profile hides their parts that a
/// traced run did not read.
fn list_user_directories() -> Vec<PathBuf> {
    let exists = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    ["/home", "/root", "/srv", "/mnt", "/media"].map(PathBuf::from).into_iter().filter(exists).collect()
}

/// Files in a directory besides the files that it replaces.
struct AdditionalFiles {
    names: Vec<String>,
    more: usize,
}

fn newly_allowed(made: &PathGeneralisation) -> Vec<String> {
    let mut newly = AdditionalFiles { names: Vec::new(), more: 0 };
    let mut remaining = MAX_EXAMINED_ENTRIES;
    collect_additional_files(&made.directory, made, &mut newly, &mut remaining);
    if newly.more > 0 {
        newly.names.push(format!("and {} more", newly.more));
    }
    if remaining == 0 {
        newly.names.push("and files that were not examined".to_owned());
    }
    newly.names
}

fn collect_additional_files(
    directory: &Path,
    made: &PathGeneralisation,
    newly: &mut AdditionalFiles,
    remaining: &mut usize,
) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if *remaining == 0 {
            return;
        }
        *remaining -= 1;
        let path = entry.path();
        if made.from.iter().any(|from| path.starts_with(from)) {
            continue;
        }
        // A link counts as one name: its target is not beneath the directory.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_additional_files(&path, made, newly, remaining);
        } else if newly.names.len() < MAX_SHOWN_ENTRIES {
            newly.names.push(path.display().to_string());
        } else {
            newly.more += 1;
        }
    }
}
