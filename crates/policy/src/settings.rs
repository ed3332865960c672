//! The merged configuration: every value with its origin.
//!
//! Only `merge` makes it; all other modules read it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_model::{ApprovalMode, Digest, IsolationLevel, PolicyVerdict, SandboxPreference};

use crate::error::advise_name;
use crate::file::CombiningAlgorithm;
use crate::mode::mode_name;
use crate::mounts::{MountSnapshot, MountsError, OtherPath};
use crate::notify::NotifySettings;
use crate::review::ReviewSettings;
use crate::rules::{PolicyRule, RuleBook};
use crate::spec::{ProfileSpec, SourcedValue, ValueOrigin, report_list};

/// Stockade's own directories, which no run may write (L7). Absolute and canonical.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnDirectories {
    /// Directories of configuration.
    pub configuration: Vec<PathBuf>,
    /// Directories of approvals and the audit log; not readable either.
    pub state: Vec<PathBuf>,
    /// Names by which the directories are found through symbolic links. A run that could change one of
    /// these would choose the configuration of the next run.
    pub passed: Vec<OwnPathStep>,
    /// The paths above that are other paths, by a second mount, of another entry.
    pub by_mount: Vec<OtherPath>,
}

impl OwnDirectories {
    /// Adds the paths that second mounts give to the entries.
    pub(crate) fn add_mounts(&mut self, mounts: &MountSnapshot) -> Result<(), MountsError> {
        for list in [&mut self.configuration, &mut self.state] {
            let found = mounts.other_paths(list.iter().map(PathBuf::as_path))?;
            let found: Vec<OtherPath> = found.into_iter().filter(|other| !list.contains(&other.path)).collect();
            list.extend(found.iter().map(|other| other.path.clone()));
            self.by_mount.extend(found);
        }
        let mut passed = Vec::new();
        for OwnPathStep { location, link, target } in &self.passed {
            let found = mounts.other_paths([location.as_path()])?.into_iter();
            passed.extend(found.map(|other| OwnPathStep {
                location: other.path,
                link: link.clone(),
                target: target.clone(),
            }));
        }
        self.passed.extend(passed);
        Ok(())
    }

    fn forget_mounts(&mut self) {
        for OtherPath { path, .. } in std::mem::take(&mut self.by_mount) {
            self.configuration.retain(|own| *own != path);
            self.state.retain(|own| *own != path);
        }
    }

    /// Returns the own path that a second mount shows as `path`.
    pub(crate) fn find_original_path(&self, path: &Path) -> Option<&Path> {
        self.by_mount.iter().find(|other| other.path == path).map(|other| other.of.as_path())
    }
}

/// A name that is looked up on the way to one of Stockade's own files, because a symbolic link leads there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPathStep {
    /// The name: a directory without symbolic links, and a name in it that may not exist.
    pub location: PathBuf,
    /// The link that leads there, or `location` itself if that is the link.
    pub link: PathBuf,
    /// The file or directory of Stockade that is found this way.
    pub target: PathBuf,
}

/// The merged configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// The profile of runs that name none.
    pub profile: SourcedValue<String>,
    /// When to ask for approval.
    pub approval_mode: SourcedValue<ApprovalMode>,
    /// How long a question waits, in milliseconds.
    pub approval_timeout_ms: SourcedValue<u64>,
    /// Whether a sandbox is required.
    pub sandbox: SourcedValue<SandboxPreference>,
    /// The level of runs that name none.
    pub level: SourcedValue<IsolationLevel>,
    /// Whether a user may be asked to run one command without a sandbox.
    pub allow_host: SourcedValue<bool>,
    /// The reviewer of questions; absent if there is none.
    pub review: SourcedValue<Option<ReviewSettings>>,
    /// The receivers of notices about persistent sandboxes; absent if there are none.
    pub notify: SourcedValue<Option<NotifySettings>>,
    pub(crate) home: PathBuf,
    /// Home directories whose credentials are hidden like those of `home`.
    pub(crate) other_homes: Vec<PathBuf>,
    pub(crate) own: OwnDirectories,
    /// The mounts of the host when the configuration was read.
    pub(crate) mounts: Result<MountSnapshot, MountsError>,
    pub(crate) profiles: BTreeMap<String, ProfileSpec>,
    pub(crate) rules: RuleBook,
    /// The last classes named for mode `granular`, whether or not the mode is in force.
    pub(crate) granular: Option<stockade_model::GranularMode>,
    /// Files that were read.
    pub(crate) files: Vec<(crate::spec::ConfigLayer, PathBuf)>,
}

/// One line of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingExplanation {
    /// The key in configuration syntax; list entries one by one.
    pub key: String,
    /// The value.
    pub value: String,
    /// Origin of the value.
    pub origin: ValueOrigin,
}

impl PolicySettings {
    /// Returns the home directory that `~` stands for.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Adds the mounts of the host, which give further paths to hidden files and to Stockade's own files.
    /// If they are an error, every run fails with it.
    #[must_use]
    pub fn with_mounts(mut self, mounts: Result<MountSnapshot, MountsError>) -> Self {
        self.mounts = mounts.and_then(|mounts| self.own.add_mounts(&mounts).map(|()| mounts));
        self
    }

    /// Removes the mounts of the host. A persistent sandbox has none of the later mounts, and the paths of
    /// the earlier ones have been hidden since its creation.
    #[must_use]
    pub fn without_mounts(mut self) -> Self {
        self.mounts = Ok(MountSnapshot::default());
        self.own.forget_mounts();
        self
    }

    /// Returns names and summaries of the existing profiles.
    pub fn profiles(&self) -> impl Iterator<Item = (&str, &str)> {
        self.profiles.iter().map(|(name, spec)| (name.as_str(), spec.summary.as_str()))
    }

    /// Returns advice about the name of a profile that does not exist.
    pub(crate) fn advise_profile(&self, name: &str) -> String {
        advise_name(name, self.profiles.keys().map(String::as_str), "", "the profiles are")
    }

    /// Returns the rules, in the order in which they were read.
    pub fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        self.rules.rules()
    }

    /// Returns the rules in their sets, one for each file.
    pub fn rule_book(&self) -> &RuleBook {
        &self.rules
    }

    /// Returns the files that were read, in the order in which they were merged.
    pub fn files(&self) -> impl Iterator<Item = (crate::spec::ConfigLayer, &Path)> {
        self.files.iter().map(|(layer, path)| (*layer, path.as_path()))
    }

    /// Returns whether nothing is configured, so that the built-in policy applies.
    pub fn is_built_in(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns every value with its origin: the settings, then the profile `name`, then the rules.
    pub fn explain_profile(&self, name: &str) -> Vec<SettingExplanation> {
        let mut lines = Vec::new();
        self.each_line(name, &mut |key, value, origin| {
            lines.push(SettingExplanation { key: key.to_owned(), value, origin: origin.clone() });
        });
        lines
    }

    /// Reports key and value of every line of [`explain_profile`](Self::explain_profile) that the digest for answers
    /// includes. `allow` rules with provenance, such as those of answers, are left out, so that a new
    /// answer does not invalidate another one.
    pub fn explained_values(&self, name: &str, mut line: impl FnMut(&str, &str)) {
        let mut line = |key: &str, value: String, _: &ValueOrigin| line(key, &value);
        self.each_setting_of(name, &mut line);
        self.each_rule(&mut line, false);
    }

    fn each_line(&self, name: &str, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        self.each_setting_of(name, line);
        if let Some(review) = &self.review.value {
            review.report_values(&mut |key, value| line(key, value, &self.review.origin));
        }
        if let Some(notify) = &self.notify.value {
            notify.report_values(&mut |key, value| line(key, value, &self.notify.origin));
        }
        self.each_rule(line, true);
    }

    fn each_setting_of(&self, name: &str, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        self.each_setting(line);
        if let Some(spec) = self.profiles.get(name) {
            let mut key_here = format!("profiles.{name}.");
            let prefix = key_here.len();
            spec.report_entries(&mut |key, value, origin| {
                key_here.truncate(prefix);
                key_here.push_str(key);
                line(&key_here, value, origin);
            });
        }
    }

    fn each_setting(&self, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        line("profile", self.profile.value.clone(), &self.profile.origin);
        line("approval_mode", mode_text(self.approval_mode.value), &self.approval_mode.origin);
        let timeout = format!("{}ms", self.approval_timeout_ms.value);
        line("approval_timeout", timeout, &self.approval_timeout_ms.origin);
        line("sandbox", preference_name(self.sandbox.value).to_owned(), &self.sandbox.origin);
        line("level", self.level.value.to_string(), &self.level.origin);
        line("allow_host", self.allow_host.value.to_string(), &self.allow_host.origin);
    }

    fn each_rule(&self, line: &mut dyn FnMut(&str, String, &ValueOrigin), answers: bool) {
        for set in self.rules.sets() {
            let is_answer = |rule: &&PolicyRule| rule.effect == PolicyVerdict::Allow && rule.provenance.is_some();
            if set.combining != CombiningAlgorithm::DenyOverrides {
                line("combining", format!("{:?}", set.combining), &ValueOrigin::Default);
            }
            for rule in set.rules.iter().filter(|rule| answers || !is_answer(rule)) {
                line("rules", rule.canonical_text().to_owned(), &rule.origin);
            }
        }
    }
}

impl PolicySettings {
    /// Returns the digest of the configuration, which consent is bound to (L5): equal if every value is
    /// equal, whatever its position. The time-out of a question and its reviewer are left out, because they
    /// do not change the approved powers.
    pub fn compute_digest(&self) -> Digest {
        let mut fields: Vec<String> = Vec::new();
        let mut line = |key: &str, value: String, _: &ValueOrigin| {
            if key != "approval_timeout" {
                fields.extend([key.to_owned(), value]);
            }
        };
        self.each_setting(&mut line);
        for (name, spec) in &self.profiles {
            line("profile", format!("{name} {} {:?}", spec.sandboxed, spec.network), &ValueOrigin::Default);
            spec.report_entries(&mut line);
        }
        self.each_rule(&mut line, false);
        let own = self.own.configuration.iter().chain(&self.own.state);
        let paths = own.chain([&self.home]).map(|path| path.as_os_str().as_bytes());
        Digest::of_fields("stockade-settings-1", fields.iter().map(String::as_bytes).chain(paths))
    }
}

/// Formats a mode with its classes.
fn mode_text(mode: ApprovalMode) -> String {
    let ApprovalMode::Granular(classes) = mode else { return mode_name(mode).to_owned() };
    let named = [
        ("run", classes.run),
        ("filesystem", classes.filesystem),
        ("network", classes.network),
        ("other", classes.other),
    ];
    let ask_names: Vec<&str> = named.iter().filter(|(_, may)| *may).map(|(name, _)| *name).collect();
    format!("granular ({})", ask_names.join(", "))
}

impl ProfileSpec {
    /// Reports every entry of every list, and every limit.
    fn report_entries(&self, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        for (key, list) in
            [("write", &self.write), ("hide", &self.hide), ("reveal", &self.reveal), ("sockets", &self.sockets)]
        {
            report_list(key, list, line);
        }
        self.stage.iter().for_each(|entry| line("stage", entry.value.to_string(), &entry.origin));
        self.protect.iter().for_each(|entry| line("protect", entry.value.0.clone(), &entry.origin));
        for (key, list) in [("exec.ask", &self.exec_ask), ("exec.deny", &self.exec_deny)] {
            report_list(key, list, line);
        }
        self.pass.iter().for_each(|entry| line("env.pass", entry.value.as_str().to_owned(), &entry.origin));
        self.drop.iter().for_each(|entry| line("env.drop", entry.value.as_str().to_owned(), &entry.origin));
        for (name, entry) in &self.set {
            line(&format!("env.set.{name}"), entry.value.clone(), &entry.origin);
        }
        for (limit, entry) in &self.limits {
            line(limit.key(), limit.format_amount(entry.value), &entry.origin);
        }
        self.egress.report_entries(line);
    }
}

fn preference_name(preference: SandboxPreference) -> &'static str {
    match preference {
        SandboxPreference::Auto => "auto",
        SandboxPreference::Require => "require",
        SandboxPreference::Forbid => "forbid",
    }
}
