//! From what a session was given and refused to the smallest policy that would
//! have let the approved part pass.
//!
//! Exact by default: each path and host as it was agreed to. A directory takes
//! the place of its files only where that is asked for, and what it would newly
//! allow is shown. Never over credentials, protected names or what own_reached, and
//! never over anything that was refused. Pure: events in, text out.

#[path = "suggest_reads.rs"]
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stockade_model::{
    Command, Denial, Event, EventKind, Grant, Profile, RawText, ReadAccess, Request, RequestId, Resolution, SecretUse,
    Target,
};

use crate::amend::{rule_for_secrets, rules_for};
use crate::draft::{DraftRule, comment, quoted};
use crate::environment::looks_secret;
use crate::file::ProvenanceSection;
use crate::resolve::{has_power, hidden_by, is_protected, own_reached, resolve_profile};
use crate::settings::Settings;

/// From how many files on a directory may take their place.
const FILES_FOR_DIRECTORY: usize = 3;
/// Most powers of one suggestion.
const MAX_POWERS: usize = 1000;

/// Most files of traced runs that are kept in mind.
const MAX_READS: usize = 10_000;

const IN_SESSION: &str = "agreed to in a session";

/// What to suggest from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Powers that were agreed to, and who agreed in which requests.
    pub approved: BTreeMap<Grant, BTreeSet<Provenance>>,
    /// Powers that were refused and stayed so, and how often.
    pub refused: BTreeMap<Grant, u64>,
    /// What traced runs read, by resolved path.
    pub reads: BTreeMap<PathBuf, Reading>,
    requests: BTreeMap<RequestId, Request>,
    asked: BTreeMap<RequestId, String>,
}

/// What a traced run read under one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// A directory whose names were listed, or that stands for files.
    pub directory: bool,
    /// How many files it stands for; 0 where it is meant itself.
    pub files: u64,
    /// The program that read it first.
    pub program: Option<RawText>,
    /// The request.
    pub request: RequestId,
}

/// Who agreed, during which request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Provenance {
    /// The request.
    pub request: RequestId,
    /// Who: `terminal`, `cache` ...
    pub by: String,
}

impl Provenance {
    /// As it stands beside what is suggested because of it.
    fn of_suggestion(&self) -> ProvenanceSection {
        ProvenanceSection {
            by: format!("suggested, agreed to by {}", self.by),
            at: None,
            request: Some(self.request.to_string()),
        }
    }
}

impl Learned {
    /// Takes in one event, in order.
    pub fn take(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Requested { request, .. } => {
                // What it asks for is not agreed to yet.
                self.requests.insert(event.request.clone(), (**request).clone());
            }
            EventKind::Answered { by, .. } => {
                self.asked.insert(event.request.clone(), by.clone());
            }
            EventKind::Starting { grants, .. } => {
                grants.iter().for_each(|grant| self.approve(grant, &event.request));
            }
            EventKind::Granted { grants, .. } => {
                grants.iter().for_each(|grant| self.approve(grant, &event.request));
            }
            EventKind::Traced { reads, .. } => reads.iter().for_each(|read| self.read(read, &event.request)),
            EventKind::Denied { denial, .. } => self.deny(denial, &event.request),
            _ => {}
        }
    }

    /// A directory stands for its files once it did.
    fn read(&mut self, read: &ReadAccess, request: &RequestId) {
        let path = read.object.as_path();
        if let Some(known) = self.reads.get_mut(path) {
            known.files = known.files.max(read.files);
        } else if self.reads.len() < MAX_READS {
            let reading = Reading {
                directory: read.directory,
                files: read.files,
                program: read.program.clone(),
                request: request.clone(),
            };
            self.reads.insert(path.to_owned(), reading);
        }
    }

    fn approve(&mut self, grant: &Grant, request: &RequestId) {
        if self.approved.len() < MAX_POWERS || self.approved.contains_key(grant) {
            let by = self.asked.get(request).cloned().unwrap_or_else(|| "command line".to_owned());
            let provenance = Provenance { request: request.clone(), by };
            self.approved.entry(grant.clone()).or_default().insert(provenance);
        }
        // The later word holds: first it was refused, then agreed to.
        self.refused.remove(grant);
    }

    fn deny(&mut self, denial: &Denial, request: &RequestId) {
        let Some(grant) = &denial.grant else { return };
        match denial.resolution {
            Resolution::Granted => self.approve(grant, request),
            // Noted where nobody was asked: no word against what was agreed to.
            Resolution::Recorded if self.approved.contains_key(grant) => {}
            Resolution::Refused | Resolution::Recorded => {
                if self.refused.len() < MAX_POWERS || self.refused.contains_key(grant) {
                    *self.refused.entry(grant.clone()).or_default() += denial.count;
                }
            }
        }
    }
}

/// A directory in the place of some of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generalisation {
    /// The directory.
    pub directory: PathBuf,
    /// The paths whose place it takes.
    pub from: Vec<PathBuf>,
    /// For reading alone.
    pub reads: bool,
}

/// What is suggested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suggestion {
    /// Lists of the profile by key: `write`, `reveal`, `env.pass`, `egress.allow`.
    pub profile: BTreeMap<&'static str, Vec<String>>,
    /// Rules with powers that no profile holds.
    pub rules: Vec<DraftRule>,
    /// Directories in the place of files.
    pub generalised: Vec<Generalisation>,
    /// What was approved and is not suggested, and why.
    pub left_out: Vec<(Grant, &'static str)>,
    /// What was refused and stays so.
    pub refused: Vec<Grant>,
}

/// Makes the smallest suggestion. `base` is the profile it adds to; `generalise`
/// lets a directory take the place of three or more of its files. Where a run
/// was traced, `hideable` and the home directory are hidden but for what it read.
pub fn suggest(
    settings: &Settings,
    learned: &Learned,
    base: &str,
    workspace: &Path,
    (generalise, hideable): (bool, &[PathBuf]),
) -> Suggestion {
    let mut suggestion = Suggestion { refused: learned.refused.keys().cloned().collect(), ..Suggestion::default() };
    let Ok(profile) = resolve_profile(settings, base, workspace, &[]) else { return suggestion };
    let maker = Maker { settings, learned, profile, workspace };
    let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
    for grant in learned.approved.keys() {
        // A `no` that came later, or elsewhere in the session, outweighs (L9).
        if learned.refused.contains_key(grant) {
            suggestion.left_out.push((grant.clone(), "it was also refused"));
        } else if let Some(why) = maker.guarded(grant) {
            suggestion.left_out.push((grant.clone(), why));
        } else if has_power(&maker.profile, grant) {
            // The profile has it; nothing to add.
        } else if let Grant::Write(path) = grant {
            paths.insert(path.clone());
        } else {
            maker.other(grant, &mut suggestion);
        }
    }
    if generalise {
        suggestion.generalised = maker.generalise(&mut paths);
    }
    for path in paths {
        maker.push(&mut suggestion, "write", &path);
    }
    if !learned.reads.is_empty() {
        reads::suggest(&maker, hideable, generalise, &mut suggestion);
    }
    suggestion
}

struct Maker<'a> {
    settings: &'a Settings,
    learned: &'a Learned,
    profile: Profile,
    workspace: &'a Path,
}

impl Maker<'_> {
    fn push(&self, suggestion: &mut Suggestion, key: &'static str, path: &Path) {
        suggestion.profile.entry(key).or_default().push(self.shown(path));
    }

    /// As configuration writes it: `~/` where it lies in the home directory.
    fn shown(&self, path: &Path) -> String {
        let home = self.settings.home();
        match path.strip_prefix(home) {
            Ok(rest) if !rest.as_os_str().is_empty() => format!("~/{}", rest.display()),
            _ => path.display().to_string(),
        }
    }

    /// Why a power is never suggested.
    fn guarded(&self, grant: &Grant) -> Option<&'static str> {
        let filesystem = &self.profile.filesystem;
        let is_guarded = self.settings.guarded_place(grant).is_some();
        let Some(path) = grant.path() else {
            return is_guarded.then_some("it reaches credentials or a part of the system: agree each time");
        };
        if path.to_str().is_none_or(|text| text.chars().any(char::is_control) || text.contains(['*', '?', '[', '$'])) {
            return Some("its name has no form in a configuration");
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
            return Some("it is everything");
        }
        is_guarded.then_some("it is a credential or a part of the system: agree each time")
    }

    /// Powers beyond paths that are written.
    fn other(&self, grant: &Grant, suggestion: &mut Suggestion) {
        match grant {
            Grant::Read(path) => self.push(suggestion, "reveal", path),
            Grant::Socket(_) => suggestion.left_out.push((grant.clone(), "a socket may be a way out of the sandbox")),
            Grant::Exec(_) => suggestion.left_out.push((grant.clone(), "a program is agreed to each time")),
            Grant::Effect(_) => suggestion.left_out.push((grant.clone(), "an effect is agreed to each time")),
            Grant::Env(name) => match name.parse::<crate::text::VariableName>() {
                Ok(_) if !looks_secret(name) => {
                    suggestion.profile.entry("env.pass").or_default().push(name.clone());
                }
                _ => suggestion.left_out.push((grant.clone(), "its name is that of a secret")),
            },
            Grant::Connect(targets) => match targets.target() {
                Some(target) => self.connect(&target, grant, suggestion),
                None => suggestion.left_out.push((grant.clone(), "it reaches more than one host and port: name one")),
            },
            Grant::Secret(wanted) => self.secret(wanted, grant, suggestion),
            Grant::Sign(_) => suggestion.left_out.push((grant.clone(), "a signature is agreed to each time")),
            Grant::Listen(_) => suggestion.left_out.push((grant.clone(), "a profile has no key for it")),
            Grant::Limit(..) => suggestion.left_out.push((grant.clone(), "a profile's limits are raised by hand")),
            Grant::Write(_) => {}
        }
    }

    /// For the very commands that used it where they can have a rule; otherwise
    /// for every command of the profile.
    fn connect(&self, target: &Target, grant: &Grant, suggestion: &mut Suggestion) {
        let users = self.learned.approved.get(grant).into_iter().flatten();
        let mut lone = false;
        for provenance in users {
            let section = provenance.of_suggestion();
            let command: Option<&Command> =
                self.learned.requests.get(&provenance.request).map(|request| &request.command);
            let grants = std::slice::from_ref(grant);
            let drafts = command.and_then(|command| {
                rules_for(command, stockade_model::Verdict::Allow, grants, &self.profile, &section).ok()
            });
            match drafts {
                Some(drafts) => {
                    for mut draft in drafts {
                        draft.justification = IN_SESSION.to_owned();
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

    /// For every command: what a secret is for is its host, not who goes there.
    fn secret(&self, wanted: &SecretUse, grant: &Grant, suggestion: &mut Suggestion) {
        let first = self.learned.approved.get(grant).and_then(|by| by.first());
        let unknown = || ProvenanceSection { by: "suggested".to_owned(), at: None, request: None };
        let section = first.map_or_else(unknown, Provenance::of_suggestion);
        match rule_for_secrets(std::slice::from_ref(wanted), &section) {
            Some(draft) => suggestion.rules.push(DraftRule { justification: IN_SESSION.to_owned(), ..draft }),
            None => {
                suggestion.left_out.push((grant.clone(), "it is for more than one port: name one"));
            }
        }
    }

    /// Directories that may take the place of their files: not where one of them
    /// holds something guarded or refused.
    fn generalise(&self, paths: &mut BTreeSet<PathBuf>) -> Vec<Generalisation> {
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
            if from.len() >= FILES_FOR_DIRECTORY && !self.learned.refused.keys().any(refused) {
                from.iter().for_each(|path| {
                    paths.remove(path);
                });
                paths.insert(directory.clone());
                made.push(Generalisation { directory, from, reads: false });
            }
        }
        made
    }
}

fn add_rule(suggestion: &mut Suggestion, draft: DraftRule) {
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

impl Suggestion {
    /// True where nothing is to be added.
    pub fn is_empty(&self) -> bool {
        self.profile.is_empty() && self.rules.is_empty()
    }

    /// A configuration with a profile `name` that adds to `base`.
    pub fn to_toml(&self, name: &str, base: &str, learned: &Learned) -> String {
        let mut text = String::new();
        for made in &self.generalised {
            let to = if made.reads { " to read" } else { "" };
            let line = format!("{} stands for {} paths{to}", made.directory.display(), made.from.len());
            text.push_str(&comment(&line));
        }
        if !self.profile.is_empty() {
            text.push_str(&format!("[profiles.{name}]\nextends = {}\n", quoted(base)));
        }
        for (key, values) in &self.profile {
            text.push_str(&format!("{key} = [\n"));
            for value in values {
                text.push_str(&format!("    {},{}\n", quoted(value), self.behind(value, learned)));
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

    /// Who agreed to an entry, as a comment behind it.
    fn behind(&self, value: &str, learned: &Learned) -> String {
        let ends = value.trim_start_matches('~');
        let used = learned.approved.iter().find(|(grant, _)| match grant {
            Grant::Env(name) => name == value,
            Grant::Connect(targets) => targets.to_string() == value,
            grant => grant.path().is_some_and(|path| path.display().to_string().ends_with(ends)),
        });
        match used.and_then(|(_, by)| by.first()) {
            Some(first) => {
                let by = RawText::from(first.by.as_str()).escaped();
                format!(" # {by}, {}", first.request)
            }
            None => learned.reader_of(ends),
        }
    }
}
