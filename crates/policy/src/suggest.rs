//! Suggests the smallest policy that would have allowed the approved part of a session, from the grants and
//! denials of the session.
//!
//! Exact by default: each approved path and host by itself. A directory replaces its files only on request,
//! and the additional paths are shown. Never suggests powers over credentials, protected names or
//! Stockade's own files, and never a power that was refused. Pure: events in, text out.

#[path = "suggest_reads.rs"]
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stockade_model::{
    Denial, DenialResolution, Event, EventKind, Grant, NetworkTarget, Profile, RawText, ReadAccess, RequestCommand,
    RequestId, RunRequest, SecretUse,
};

use crate::amend::{rule_for_secrets, rules_for};
use crate::draft::{DraftRule, format_comment, quote_toml};
use crate::environment::looks_secret;
use crate::file::ProvenanceSection;
use crate::resolve::{has_power, hidden_by, is_protected, own_reached, resolve_profile};
use crate::settings::PolicySettings;
use crate::text::VariableName;

/// Number of files from which on a directory may replace them.
const MIN_FILES_FOR_DIRECTORY: usize = 3;
/// Most powers of one suggestion.
const MAX_POWERS: usize = 1000;

/// Most files of traced runs that are stored.
const MAX_READS: usize = 10_000;

const IN_SESSION_REASON: &str = "agreed to in a session";

/// Data for a suggestion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuggestionData {
    /// Powers that were approved, with their approvers and requests.
    pub approved: BTreeMap<Grant, BTreeSet<ApprovalProvenance>>,
    /// Powers that were refused and not approved later, with the number of refusals.
    pub refused: BTreeMap<Grant, u64>,
    /// Read accesses of traced runs, by resolved path.
    pub reads: BTreeMap<PathBuf, TracedRead>,
    requests: BTreeMap<RequestId, RunRequest>,
    approvers: BTreeMap<RequestId, String>,
}

/// Read access of a traced run to one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRead {
    /// True for a directory whose names were listed, or that stands for files.
    pub directory: bool,
    /// Number of files that the directory stands for; 0 if the path itself was read.
    pub files: u64,
    /// The program that read it first.
    pub program: Option<RawText>,
    /// The request.
    pub request: RequestId,
}

/// An approver and the request of the approval.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalProvenance {
    /// The request.
    pub request: RequestId,
    /// The approver: `terminal`, `cache` ...
    pub by: String,
}

impl ApprovalProvenance {
    /// Returns the provenance of a suggested entry.
    fn of_suggestion(&self) -> ProvenanceSection {
        ProvenanceSection {
            by: format!("suggested, agreed to by {}", self.by),
            at: None,
            request: Some(self.request.to_string()),
        }
    }
}

impl SuggestionData {
    /// Adds one event; events come in order.
    pub fn add_event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Requested { request, .. } => {
                // Powers that a request asks for are not yet approved.
                self.requests.insert(event.request.clone(), (**request).clone());
            }
            EventKind::Answered { by, .. } => {
                self.approvers.insert(event.request.clone(), by.clone());
            }
            EventKind::Starting { grants, .. } => {
                grants.iter().for_each(|grant| self.record_approval(grant, &event.request));
            }
            EventKind::Granted { grants, .. } => {
                grants.iter().for_each(|grant| self.record_approval(grant, &event.request));
            }
            EventKind::Traced { reads, .. } => reads.iter().for_each(|read| self.record_read(read, &event.request)),
            EventKind::Denied { denial, .. } => self.record_denial(denial, &event.request),
            _ => {}
        }
    }

    /// Records a read access. The number of files never decreases, so that a directory which once stood for
    /// files still does.
    fn record_read(&mut self, read: &ReadAccess, request: &RequestId) {
        let path = read.object.as_path();
        if let Some(known) = self.reads.get_mut(path) {
            known.files = known.files.max(read.files);
        } else if self.reads.len() < MAX_READS {
            let reading = TracedRead {
                directory: read.directory,
                files: read.files,
                program: read.program.clone(),
                request: request.clone(),
            };
            self.reads.insert(path.to_owned(), reading);
        }
    }

    fn record_approval(&mut self, grant: &Grant, request: &RequestId) {
        if self.approved.len() < MAX_POWERS || self.approved.contains_key(grant) {
            let by = self.approvers.get(request).cloned().unwrap_or_else(|| "command line".to_owned());
            let provenance = ApprovalProvenance { request: request.clone(), by };
            self.approved.entry(grant.clone()).or_default().insert(provenance);
        }
        // The later decision counts: first the power was refused, then approved.
        self.refused.remove(grant);
    }

    fn record_denial(&mut self, denial: &Denial, request: &RequestId) {
        let Some(grant) = &denial.grant else { return };
        match denial.resolution {
            DenialResolution::Granted => self.record_approval(grant, request),
            // Recorded without a question: it does not contradict an earlier approval.
            DenialResolution::Recorded if self.approved.contains_key(grant) => {}
            DenialResolution::Refused | DenialResolution::Recorded => {
                if self.refused.len() < MAX_POWERS || self.refused.contains_key(grant) {
                    *self.refused.entry(grant.clone()).or_default() += denial.count;
                }
            }
        }
    }
}

/// A directory that replaces some of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathGeneralisation {
    /// The directory.
    pub directory: PathBuf,
    /// The replaced paths.
    pub from: Vec<PathBuf>,
    /// True if the directory is for reading only.
    pub reads: bool,
}

/// A suggested policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySuggestion {
    /// Lists of the profile by key: `write`, `reveal`, `env.pass`, `egress.allow`.
    pub profile: BTreeMap<&'static str, Vec<String>>,
    /// Rules with powers that no profile contains.
    pub rules: Vec<DraftRule>,
    /// Directories that replace files.
    pub generalised: Vec<PathGeneralisation>,
    /// Approved powers that are not suggested, with the reason.
    pub left_out: Vec<(Grant, &'static str)>,
    /// Powers that were refused and not approved later.
    pub refused: Vec<Grant>,
}

/// Makes the smallest suggestion. `base` is the profile that it adds to; `generalise` lets a directory
/// replace three or more of its files. If a run was traced, `hideable` and the home directory are hidden
/// except for the paths that the run read.
pub fn suggest_policy(
    settings: &PolicySettings,
    learned: &SuggestionData,
    base: &str,
    workspace: &Path,
    (generalise, hideable): (bool, &[PathBuf]),
) -> PolicySuggestion {
    let mut suggestion =
        PolicySuggestion { refused: learned.refused.keys().cloned().collect(), ..PolicySuggestion::default() };
    let Ok(profile) = resolve_profile(settings, base, workspace, &[]) else { return suggestion };
    let maker = SuggestionBuilder { settings, learned, profile, workspace };
    let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
    for grant in learned.approved.keys() {
        // A later refusal, or one elsewhere in the session, outweighs the approval (L9).
        if learned.refused.contains_key(grant) {
            suggestion.left_out.push((grant.clone(), "it was also refused"));
        } else if let Some(why) = maker.find_guard_reason(grant) {
            suggestion.left_out.push((grant.clone(), why));
        } else if has_power(&maker.profile, grant) {
            // The profile already has the power.
        } else if let Grant::Write(path) = grant {
            paths.insert(path.clone());
        } else {
            maker.suggest_other(grant, &mut suggestion);
        }
    }
    if generalise {
        suggestion.generalised = maker.generalise_paths(&mut paths);
    }
    for path in paths {
        maker.push(&mut suggestion, "write", &path);
    }
    if !learned.reads.is_empty() {
        reads::suggest_reads(&maker, hideable, generalise, &mut suggestion);
    }
    suggestion
}

struct SuggestionBuilder<'a> {
    settings: &'a PolicySettings,
    learned: &'a SuggestionData,
    profile: Profile,
    workspace: &'a Path,
}

impl SuggestionBuilder<'_> {
    fn push(&self, suggestion: &mut PolicySuggestion, key: &'static str, path: &Path) {
        suggestion.profile.entry(key).or_default().push(self.format_path(path));
    }

    /// Returns a path in configuration syntax: `~/` if it is in the home directory.
    fn format_path(&self, path: &Path) -> String {
        let home = self.settings.home();
        match path.strip_prefix(home) {
            Ok(rest) if !rest.as_os_str().is_empty() => format!("~/{}", rest.display()),
            _ => path.display().to_string(),
        }
    }

    /// Returns the reason why a power is never suggested.
    fn find_guard_reason(&self, grant: &Grant) -> Option<&'static str> {
        let filesystem = &self.profile.filesystem;
        let is_guarded = self.settings.find_guarded_name(grant).is_some();
        let Some(path) = grant.path() else {
            return is_guarded.then_some("it reaches credentials or a part of the system: agree each time");
        };
        if path.to_str().is_none_or(|text| text.chars().any(char::is_control) || text.contains(['*', '?', '[', '$'])) {
            return Some("its name cannot be written in a configuration");
        }
        if own_reached(self.settings, self.workspace, grant).is_some() {
            return Some("it is Stockade's own");
        }
        if hidden_by(filesystem, path).is_some() {
            return Some("it is among credentials: agree each time, or reveal it by hand");
        }
        if is_protected(filesystem, path)
            || filesystem.protect.iter().any(|name| crate::resolve::holds_name(path, name))
        {
            return Some("it is a protected name: agree each time");
        }
        if path == Path::new("/") {
            return Some("it covers all files");
        }
        is_guarded.then_some("it is a credential or a part of the system: agree each time")
    }

    /// Suggests powers other than written paths.
    fn suggest_other(&self, grant: &Grant, suggestion: &mut PolicySuggestion) {
        let left_out = match grant {
            Grant::Write(_) => return,
            Grant::Read(path) => return self.push(suggestion, "reveal", path),
            Grant::Env(name) if !looks_secret(name) && name.parse::<VariableName>().is_ok() => {
                return suggestion.profile.entry("env.pass").or_default().push(name.clone());
            }
            Grant::Connect(targets) => match targets.target() {
                Some(target) => return self.suggest_connection(&target, grant, suggestion),
                None => "it reaches more than one host and port: name one",
            },
            Grant::Secret(secret_use) => match self.draft_secret(secret_use, grant) {
                Some(draft) => return suggestion.rules.push(draft),
                None => "it is for more than one port: name one",
            },
            Grant::Env(_) => "its name looks like that of a secret",
            Grant::Socket(_) => "a socket may be an exit from the sandbox",
            Grant::Exec(_) => "a program is agreed to each time",
            Grant::Effect(_) => "an effect is agreed to each time",
            Grant::Sign(_) => "a signature is agreed to each time",
            Grant::Listen(_) => "a profile has no key for it",
            Grant::Limit(..) => "a profile's limits are raised by hand",
        };
        suggestion.left_out.push((grant.clone(), left_out));
    }

    /// Suggests a connection: for exactly the commands that used it if they can have a rule; otherwise for
    /// every command of the profile.
    fn suggest_connection(&self, target: &NetworkTarget, grant: &Grant, suggestion: &mut PolicySuggestion) {
        let users = self.learned.approved.get(grant).into_iter().flatten();
        let mut lone = false;
        for provenance in users {
            let section = provenance.of_suggestion();
            let command: Option<&RequestCommand> =
                self.learned.requests.get(&provenance.request).map(|request| &request.command);
            let grants = std::slice::from_ref(grant);
            let drafts = command.and_then(|command| {
                rules_for(command, stockade_model::PolicyVerdict::Allow, grants, &self.profile, &section).ok()
            });
            match drafts {
                Some(drafts) => {
                    for mut draft in drafts {
                        draft.justification = IN_SESSION_REASON.to_owned();
                        add_rule(suggestion, draft);
                    }
                }
                None => lone = true,
            }
        }
        if lone {
            suggestion.profile.entry("egress.allow").or_default().push(target.to_string());
        }
    }

    /// Returns the rule that sends a secret, for every command: a secret is bound to its host, not to a
    /// command. `None` if the grant is for more than one port.
    fn draft_secret(&self, secret_use: &SecretUse, grant: &Grant) -> Option<DraftRule> {
        let first = self.learned.approved.get(grant).and_then(|by| by.first());
        let unknown = || ProvenanceSection { by: "suggested".to_owned(), at: None, request: None };
        let section = first.map_or_else(unknown, ApprovalProvenance::of_suggestion);
        let draft = rule_for_secrets(std::slice::from_ref(secret_use), &section)?;
        Some(DraftRule { justification: IN_SESSION_REASON.to_owned(), ..draft })
    }

    /// Returns directories that may replace their files, unless one of them contains a guarded or refused
    /// path.
    fn generalise_paths(&self, paths: &mut BTreeSet<PathBuf>) -> Vec<PathGeneralisation> {
        let mut by_directory: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for path in paths.iter() {
            let grantable = self.settings.grantable_directory(self.workspace, &self.profile, path);
            if let Some(directory) = grantable {
                by_directory.entry(directory).or_default().push(path.clone());
            }
        }
        let mut made = Vec::new();
        for (directory, from) in by_directory {
            let refused = |grant: &Grant| grant.path().is_some_and(|path| path.starts_with(&directory));
            if from.len() >= MIN_FILES_FOR_DIRECTORY && !self.learned.refused.keys().any(refused) {
                from.iter().for_each(|path| {
                    paths.remove(path);
                });
                paths.insert(directory.clone());
                made.push(PathGeneralisation { directory, from, reads: false });
            }
        }
        made
    }
}

fn add_rule(suggestion: &mut PolicySuggestion, draft: DraftRule) {
    let same = |known: &&mut DraftRule| known.glob == draft.glob;
    match suggestion.rules.iter_mut().find(same) {
        Some(known) => {
            for grant in draft.grants {
                if !known.grants.contains(&grant) {
                    known.grants.push(grant);
                }
            }
        }
        None => suggestion.rules.push(draft),
    }
}

impl PolicySuggestion {
    /// Returns whether nothing is suggested.
    pub fn is_empty(&self) -> bool {
        self.profile.is_empty() && self.rules.is_empty()
    }

    /// Returns a configuration with a profile `name` that adds to `base`.
    pub fn to_toml(&self, name: &str, base: &str, learned: &SuggestionData) -> String {
        let mut text = String::new();
        for made in &self.generalised {
            let to = if made.reads { " to read" } else { "" };
            let line = format!("{} replaces {} paths{to}", made.directory.display(), made.from.len());
            text.push_str(&format_comment(&line));
        }
        if !self.profile.is_empty() {
            text.push_str(&format!("[profiles.{name}]\nextends = {}\n", quote_toml(base)));
        }
        for (key, values) in &self.profile {
            text.push_str(&format!("{key} = [\n"));
            for value in values {
                text.push_str(&format!("    {},{}\n", quote_toml(value), self.approver_comment(value, learned)));
            }
            text.push_str("]\n");
        }
        for rule in &self.rules {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&rule.to_toml());
        }
        text
    }

    /// Returns the approver of an entry, as a comment after it.
    fn approver_comment(&self, value: &str, learned: &SuggestionData) -> String {
        let ends = value.trim_start_matches('~');
        let used = learned.approved.iter().find(|(grant, _)| match grant {
            Grant::Env(name) => name == value,
            Grant::Connect(targets) => targets.to_string() == value,
            grant => grant.path().is_some_and(|path| path.display().to_string().ends_with(ends)),
        });
        match used.and_then(|(_, by)| by.first()) {
            Some(first) => {
                let by = RawText::from(first.by.as_str()).to_escaped();
                format!(" # {by}, {}", first.request)
            }
            None => learned.reader_of(ends),
        }
    }
}
