//! Merges layers to settings: managed, system, user, project, then session. The layers of project and
//! session may only tighten (L7): a widening value is an error with its position.
//!
//! Pure: texts in, settings out.

use std::path::{Path, PathBuf};

use stockade_model::{ApprovalMode, DEFAULT_UNDO_BYTES, IsolationLevel, PolicyVerdict, SandboxPreference};

use crate::egress;
use crate::error::{ConfigError, SectionError};
use crate::file::{ConfigFile, LevelName, ProfileSection, RuleSection};
use crate::mode::{ModeAnswers, mode_name};
use crate::mounts::MountSnapshot;
use crate::parse::{KeyPositions, parse_file};
use crate::review::ReviewSettings;
use crate::rules::{PolicyRule, RuleBook, RuleSet};
use crate::settings::{OwnDirectories, PolicySettings};
use crate::shipped;
use crate::spec::{ConfigLayer, ProfileSpec, SourcedValue, ValueOrigin};
use crate::text::ProfileName;

/// Default of `approval_timeout`, in milliseconds.
const DEFAULT_APPROVAL_TIMEOUT_MS: u64 = 120_000;

/// Most entries of one list and most rules of one file, because every entry costs time in each run.
const MAX_LIST_ENTRIES: usize = 1024;
/// Most profiles of one file.
const MAX_PROFILES: usize = 64;

/// The text of one configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerText {
    /// The layer of the file.
    pub layer: ConfigLayer,
    /// The path of the file.
    pub path: PathBuf,
    /// The text.
    pub source: String,
}

impl PolicySettings {
    /// Merges layers, which may come in any order. `home` is absolute.
    ///
    /// # Errors
    /// An error if a file contains an invalid value, or if a project's file contains a widening one.
    pub fn from_layers(home: &Path, own: OwnDirectories, layers: &[LayerText]) -> Result<Self, ConfigError> {
        let mut settings = Self {
            profile: SourcedValue::new("workspace".to_owned(), ValueOrigin::Default),
            approval_mode: SourcedValue::new(ApprovalMode::default(), ValueOrigin::Default),
            approval_timeout_ms: SourcedValue::new(DEFAULT_APPROVAL_TIMEOUT_MS, ValueOrigin::Default),
            sandbox: SourcedValue::new(SandboxPreference::Auto, ValueOrigin::Default),
            level: SourcedValue::new(IsolationLevel::Full, ValueOrigin::Default),
            allow_host: SourcedValue::new(false, ValueOrigin::Default),
            review: SourcedValue::new(None, ValueOrigin::Default),
            notify: SourcedValue::new(None, ValueOrigin::Default),
            home: home.to_owned(),
            other_homes: Vec::new(),
            own,
            mounts: Ok(MountSnapshot::default()),
            profiles: shipped::load_shipped_profiles(home)?,
            rules: RuleBook::default(),
            granular: None,
            files: Vec::new(),
        };
        let mut ordered: Vec<&LayerText> = layers.iter().collect();
        ordered.sort_by_key(|layer| layer.layer);
        let mut managed = Vec::new();
        for layer in ordered {
            let file = LayerFile::parse_layer(layer)?;
            file.apply_to(&mut settings)?;
            if layer.layer == ConfigLayer::Managed {
                managed.push(file);
            }
        }
        for file in &managed {
            file.apply_bounds(&mut settings);
            file.apply_outgoing(&mut settings)?;
        }
        let secret = settings.review.value.as_ref().and_then(ReviewSettings::secret_file).map(Path::to_owned);
        settings.own.state.extend(secret);
        Ok(settings)
    }

    /// Returns the same settings with one more layer, which may only tighten: that of a session. The result
    /// is the same as if all layers were merged together.
    ///
    /// # Errors
    /// An error if the layer contains an invalid or a widening value.
    pub fn with_session(&self, path: &Path, source: &str) -> Result<Self, ConfigError> {
        let layer = LayerText { layer: ConfigLayer::Session, path: path.to_owned(), source: source.to_owned() };
        let mut settings = self.clone();
        LayerFile::parse_layer(&layer)?.apply_to(&mut settings)?;
        Ok(settings)
    }
}

/// One parsed file that is merged into the settings.
struct LayerFile<'a> {
    layer: &'a LayerText,
    positions: KeyPositions,
    content: ConfigFile,
}

impl<'a> LayerFile<'a> {
    fn parse_layer(layer: &'a LayerText) -> Result<Self, ConfigError> {
        let (content, positions) = parse_file::<ConfigFile>(&layer.path, &layer.source)?;
        Ok(Self { layer, positions, content })
    }
}

impl LayerFile<'_> {
    fn apply_to(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        settings.files.push((self.layer.layer, self.layer.path.clone()));
        settings.granular = self.content.approval.granular.or(settings.granular);
        self.apply_scalars(settings)?;
        self.apply_outgoing(settings)?;
        self.apply_mode(settings, settings.granular)?;
        self.apply_profiles(settings)?;
        self.apply_default_profile(settings)?;
        self.apply_rules(settings)
    }

    fn error_at(&self, key: &str, message: impl Into<String>) -> ConfigError {
        // The position of an item if it has one, otherwise that of the nearest parent key.
        let mut path = key;
        let mut position = self.positions.get(path);
        while let (None, Some(at)) = (position, path.rfind(['.', '['])) {
            path = &path[..at];
            position = self.positions.get(path);
        }
        ConfigError::new(&self.layer.path, position, message)
    }

    fn widening_error(&self, key: &str, why: &str) -> ConfigError {
        let layer = self.layer.layer;
        let error_text = format!("`{key}` in {layer} configuration: {why}");
        let hint = format!("a {layer} may only tighten; to widen the policy, edit your own configuration");
        self.error_at(key, error_text).with_hint(hint)
    }

    fn unknown_profile(&self, key: &str, settings: &PolicySettings, name: &str) -> ConfigError {
        let error = self.error_at(key, format!("there is no profile `{name}`"));
        error.with_hint(settings.advise_profile(name))
    }

    fn only_narrows(&self) -> bool {
        self.layer.layer.only_narrows()
    }

    fn origin_of(&self, key: &str) -> ValueOrigin {
        ValueOrigin::File { layer: self.layer.layer, path: self.layer.path.clone(), position: self.positions.get(key) }
    }

    fn set_value<T>(&self, slot: &mut SourcedValue<T>, key: &str, value: T) {
        *slot = SourcedValue::new(value, self.origin_of(key));
    }

    fn set_some<T>(&self, slot: &mut SourcedValue<T>, key: &str, value: Option<T>) {
        if let Some(value) = value {
            self.set_value(slot, key, value);
        }
    }

    /// Sets a value, unless the layer may only tighten and `widens` returns how this value would widen.
    fn set_checked<T: PartialEq>(
        &self,
        slot: &mut SourcedValue<T>,
        key: &str,
        value: Option<T>,
        widens: impl FnOnce(&T, &T) -> Option<String>,
    ) -> Result<(), ConfigError> {
        let Some(value) = value else { return Ok(()) };
        if self.only_narrows()
            && let Some(why) = widens(&slot.value, &value)
        {
            return Err(self.widening_error(key, &why));
        }
        self.set_value(slot, key, value);
        Ok(())
    }

    fn apply_scalars(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        let content = &self.content;
        let timeout = content.approval_timeout.map(|timeout| timeout.0);
        self.set_checked(&mut settings.approval_timeout_ms, "approval_timeout", timeout, |current, new| {
            (new > current).then(|| format!("longer than the {current} ms in force"))
        })?;
        self.set_checked(&mut settings.sandbox, "sandbox", content.sandbox, |current, new| {
            (*new != SandboxPreference::Require && new != current).then(|| "only `require` tightens".to_owned())
        })?;
        let level = content.level.map(LevelName::to_level);
        self.set_checked(&mut settings.level, "level", level, |current, new| {
            let is_weaker = *new == IsolationLevel::Restricted && *current == IsolationLevel::Full;
            is_weaker.then(|| "weaker than the `full` in force".to_owned())
        })?;
        self.set_checked(&mut settings.allow_host, "allow_host", content.allow_host, |_, new| {
            new.then(|| "only the person may permit runs without a sandbox".to_owned())
        })
    }

    /// Applies the sections about data that leaves this machine, or about programs besides commands.
    fn apply_outgoing(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        if let Some(section) = &self.content.review {
            let review = self.check_outgoing("review", section.to_settings(&settings.home))?;
            self.set_value(&mut settings.review, "review", review);
        }
        if let Some(section) = &self.content.notify {
            let notify = self.check_outgoing("notify", section.to_settings(&settings.home))?;
            self.set_value(&mut settings.notify, "notify", notify);
        }
        Ok(())
    }

    fn check_outgoing<T>(&self, section: &str, result: Result<T, SectionError>) -> Result<T, ConfigError> {
        if self.only_narrows() {
            return Err(self.widening_error(section, "only users of this machine may configure what leaves it"));
        }
        result.map_err(|(key, why, remedy)| self.error_at(&key, format!("`{key}`: {why}")).with_hint(remedy))
    }

    fn apply_mode(
        &self,
        settings: &mut PolicySettings,
        granular: Option<stockade_model::GranularMode>,
    ) -> Result<(), ConfigError> {
        let current = settings.approval_mode.value;
        let (key, mode) = match self.content.approval_mode {
            Some(name) => match name.with_classes(granular) {
                Some(mode) => ("approval_mode", mode),
                None => {
                    return Err(self.error_at("approval_mode", "`granular` without classes").with_hint(
                        "add `[approval.granular]` with `run`, `filesystem`, `network` or `other` set to true",
                    ));
                }
            },
            // Classes alone change a mode that is already granular.
            None => match (current, self.content.approval.granular) {
                (ApprovalMode::Granular(_), Some(classes)) => ("approval.granular", ApprovalMode::Granular(classes)),
                _ => return Ok(()),
            },
        };
        if self.only_narrows() && !is_as_strict(mode, current) {
            let why = format!("not stricter in every case than the `{}` in force", mode_name(current));
            return Err(self.widening_error(key, &why));
        }
        self.set_value(&mut settings.approval_mode, key, mode);
        Ok(())
    }

    /// Applies profiles; a profile comes after those it extends, whatever their order in the file.
    fn apply_profiles(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        let mut pending: Vec<(&str, &ProfileSection)> =
            self.content.profiles.iter().map(|(name, section)| (name.0.as_str(), section)).collect();
        if pending.len() > MAX_PROFILES {
            return Err(self.error_at("profiles", format!("at most {MAX_PROFILES} profiles")));
        }
        for (name, section) in &pending {
            self.check_profile(settings, name, section)?;
        }
        while !pending.is_empty() {
            let waits = |(name, section): &(&str, &ProfileSection)| {
                let base = base_of(section);
                !settings.profiles.contains_key(*name) && pending.iter().any(|(other, _)| *other == base)
            };
            let Some(next) = pending.iter().position(|entry| !waits(entry)) else {
                let key = format!("profiles.{}.extends", pending[0].0);
                return Err(self.error_at(&key, format!("profile `{}` extends itself", pending[0].0)));
            };
            let (name, section) = pending.remove(next);
            self.apply_profile(settings, name, section)?;
        }
        Ok(())
    }

    fn check_profile(
        &self,
        settings: &PolicySettings,
        name: &str,
        section: &ProfileSection,
    ) -> Result<(), ConfigError> {
        let fail = |rest: &str, why: &str| self.error_at(&format!("profiles.{name}{rest}"), why);
        if let Some((key, _)) = list_lengths(section).find(|(_, length)| *length > MAX_LIST_ENTRIES) {
            return Err(fail(&format!(".{key}"), &format!("at most {MAX_LIST_ENTRIES} entries in one list")));
        }
        if let Err(why) = name.parse::<ProfileName>() {
            return Err(fail("", &format!("`{name}`: {why}")));
        }
        if name == "host" {
            let error = fail("", "the profile `host` has no sandbox and nothing to configure");
            return Err(error.with_hint("to permit it, set `allow_host = true` in your own configuration"));
        }
        if section.extends.as_ref().is_some_and(|base| base.0 == "host") {
            let error = fail(".extends", "`host` has no sandbox and cannot be extended");
            return Err(error.with_hint("extend `workspace` and add what is needed"));
        }
        if section.extends.is_some() && settings.profiles.contains_key(name) {
            let error = fail(".extends", &format!("the profile `{name}` exists already"));
            return Err(error.with_hint("leave `extends` out to add to it, or choose another name"));
        }
        if let Some(variable) = section.env.malformed_name() {
            let error = fail(".env.set", &format!("`{variable}` is not a variable name"));
            return Err(error.with_hint("a variable is letters, digits and `_`, not starting with a digit"));
        }
        if let Some((variable, _)) = section.env.set.iter().find(|(_, value)| value.contains('\0')) {
            return Err(fail(".env.set", &format!("the value of `{variable}` contains a NUL byte")));
        }
        if let Some(0..16) = section.limits.open_files {
            return Err(fail(".limits.open_files", "a run needs at least 16 descriptors"));
        }
        for (key, amount) in [("processes", section.limits.processes), ("inodes", section.limits.inodes)] {
            if amount == Some(0) {
                return Err(fail(&format!(".limits.{key}"), "must be greater than zero"));
            }
        }
        if let Err((key, why, hint)) = egress::check_section(&section.egress) {
            return Err(fail(&format!(".{key}"), &why).with_hint(hint));
        }
        if self.only_narrows() { self.check_narrows(settings, name, section) } else { Ok(()) }
    }

    fn check_narrows(
        &self,
        settings: &PolicySettings,
        name: &str,
        section: &ProfileSection,
    ) -> Result<(), ConfigError> {
        let widens = |key: &str, why: &str| Err(self.widening_error(&format!("profiles.{name}.{key}"), why));
        let egress = &section.egress;
        let used = list_lengths(section).chain([
            ("egress.secrets", egress.secrets.len()),
            ("egress.upstream", usize::from(egress.upstream.is_some())),
        ]);
        let used: Vec<&str> = used.filter(|(_, length)| *length > 0).map(|(key, _)| key).collect();
        if let Some(key) = GIVING_KEYS.iter().chain(&egress::GIVING_KEYS).find(|key| used.contains(key)) {
            return widens(key, "it would give more");
        }
        let base = settings.profiles.get(name).or_else(|| settings.profiles.get(base_of(section)));
        let has = |flag: fn(&ProfileSpec) -> bool| base.is_some_and(flag);
        let base_undo_bytes = base.map_or(DEFAULT_UNDO_BYTES, ProfileSpec::undo_bytes);
        if section.stage == Some(false) && has(ProfileSpec::has_staged_writes) {
            return widens("stage", "writes would no longer be staged");
        }
        if section.undo == Some(false) && has(ProfileSpec::has_undo) {
            return widens("undo", "changes could not be undone");
        }
        if section.undo_bytes.is_some_and(|bytes| bytes.0 > base_undo_bytes) {
            return widens("undo_bytes", "it would keep more");
        }
        if section.caches == Some(true) && !has(ProfileSpec::has_caches) {
            return widens("caches", "it would give more");
        }
        // Without a base, the profile extends another profile of this file, whose limits are its start.
        let Some(base) = base else { return Ok(()) };
        let mut narrowed = base.clone();
        narrowed.apply_limits(&section.limits.to_limits(), &|_| ValueOrigin::Default);
        narrowed.egress.apply_section(egress, &|_| ValueOrigin::Default, &settings.home, false);
        match narrowed.raised_limit(base) {
            Some((key, old)) => widens(key, &format!("higher than the {old} in force")),
            None => Ok(()),
        }
    }

    fn apply_profile(
        &self,
        settings: &mut PolicySettings,
        name: &str,
        section: &ProfileSection,
    ) -> Result<(), ConfigError> {
        if !settings.profiles.contains_key(name) {
            let base = base_of(section);
            let Some(spec) = settings.profiles.get(base) else {
                return Err(self.unknown_profile(&format!("profiles.{name}.extends"), settings, base));
            };
            let mut spec = spec.clone();
            spec.lineage.insert(0, base.to_owned());
            spec.summary = format!("`{base}` as changed by {} configuration", self.layer.layer);
            settings.profiles.insert(name.to_owned(), spec);
        }
        let home = settings.home.clone();
        let origin = |key: &str| self.origin_of(&format!("profiles.{name}.{key}"));
        let before = if self.only_narrows() { Some(settings.profiles.clone()) } else { None };
        for (other, spec) in &mut settings.profiles {
            if other == name {
                spec.apply_section(section, &origin, &home, false);
            } else if spec.lineage.iter().any(|ancestor| ancestor == name) {
                // An inherited limit must not undo a lower limit of the derived profile.
                let own = spec.clone();
                spec.apply_section(section, &origin, &home, false);
                spec.lower_limits(&own);
            }
        }
        // The result of narrowing as a whole, in case the checks of single keys missed something.
        for (name, old) in before.iter().flatten() {
            if let Some(key) = settings.profiles.get(name).and_then(|new| new.wider_than(old)) {
                return Err(self.widening_error(&format!("profiles.{name}.{key}"), "it would give more"));
            }
        }
        Ok(())
    }

    fn apply_default_profile(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        let Some(ProfileName(name)) = &self.content.profile else { return Ok(()) };
        let Some(chosen) = settings.profiles.get(name) else {
            return Err(self.unknown_profile("profile", settings, name));
        };
        self.check_not_wider(settings, "profile", name, chosen)?;
        self.set_value(&mut settings.profile, "profile", name.clone());
        Ok(())
    }

    fn apply_rules(&self, settings: &mut PolicySettings) -> Result<(), ConfigError> {
        if self.content.rules.len() > MAX_LIST_ENTRIES {
            return Err(self.error_at("rules", format!("at most {MAX_LIST_ENTRIES} rules")));
        }
        let mut rules = Vec::with_capacity(self.content.rules.len());
        for (i, section) in self.content.rules.iter().enumerate() {
            let key = format!("rules[{i}]");
            if self.only_narrows() && section.effect == PolicyVerdict::Allow {
                return Err(self.widening_error(&format!("{key}.effect"), "only `ask` and `deny` tighten"));
            }
            self.check_rule(settings, section, &key)?;
            let rule = PolicyRule::new(section, self.origin_of(&key))
                .map_err(|(rest, why)| self.error_at(&format!("{key}.{rest}"), why))?;
            rules.push(rule);
        }
        if !rules.is_empty() {
            settings.rules.push(RuleSet { combining: self.content.combining, rules });
        }
        Ok(())
    }

    /// Checks the requirements of a rule for a run.
    fn check_rule(&self, settings: &PolicySettings, section: &RuleSection, key: &str) -> Result<(), ConfigError> {
        if self.only_narrows() && !section.grants.is_empty() {
            return Err(self.widening_error(&format!("{key}.grants"), "it would give more"));
        }
        let Some(ProfileName(name)) = &section.profile else { return Ok(()) };
        let at = format!("{key}.profile");
        let Some(spec) = settings.profiles.get(name) else {
            return Err(self.unknown_profile(&at, settings, name));
        };
        if !spec.sandboxed {
            let error = self
                .error_at(&at, format!("the profile `{name}` has no sandbox, and a rule cannot remove the sandbox"));
            return Err(error.with_hint("name a profile with a sandbox"));
        }
        self.check_not_wider(settings, &at, name, spec)
    }

    /// Refuses a profile that gives more than the chosen one, if the layer may only tighten.
    fn check_not_wider(
        &self,
        settings: &PolicySettings,
        key: &str,
        name: &str,
        spec: &ProfileSpec,
    ) -> Result<(), ConfigError> {
        let current = settings.profiles.get(&settings.profile.value).filter(|_| self.only_narrows());
        match current.and_then(|current| spec.wider_than(current)) {
            Some(wider) => {
                let why = format!("`{name}` gives more than `{}` (`{wider}`)", settings.profile.value);
                Err(self.widening_error(key, &why))
            }
            None => Ok(()),
        }
    }

    /// Applies managed configuration against every other layer: paths it hides, names it protects and
    /// variables it drops stay so; its limits and its stricter values apply.
    fn apply_bounds(&self, settings: &mut PolicySettings) {
        let content = &self.content;
        let current = settings.approval_mode.value;
        let mode = content.approval_mode.and_then(|mode| mode.with_classes(content.approval.granular));
        self.set_some(&mut settings.approval_mode, "approval_mode", mode.filter(|mode| !is_as_strict(current, *mode)));
        let current_ms = settings.approval_timeout_ms.value;
        let timeout = content.approval_timeout.map(|timeout| timeout.0).filter(|new| *new < current_ms);
        self.set_some(&mut settings.approval_timeout_ms, "approval_timeout", timeout);
        let sandbox = content.sandbox.filter(|sandbox| *sandbox == SandboxPreference::Require);
        self.set_some(&mut settings.sandbox, "sandbox", sandbox);
        let level = content.level.map(LevelName::to_level).filter(|level| *level == IsolationLevel::Full);
        self.set_some(&mut settings.level, "level", level);
        self.set_some(&mut settings.allow_host, "allow_host", content.allow_host.filter(|allows| !allows));
        for (name, section) in &content.profiles {
            self.bound_profile(settings, &name.0, section);
        }
        if let Some(ProfileName(name)) = &content.profile
            && let (Some(own), Some(managed)) =
                (settings.profiles.get(&settings.profile.value), settings.profiles.get(name))
            && own.wider_than(managed).is_some()
        {
            self.set_value(&mut settings.profile, "profile", name.clone());
        }
    }

    fn bound_profile(&self, settings: &mut PolicySettings, name: &str, section: &ProfileSection) {
        let home = settings.home.clone();
        let origin = |key: &str| self.origin_of(&format!("profiles.{name}.{key}"));
        for (other, spec) in &mut settings.profiles {
            if other == name || spec.lineage.iter().any(|ancestor| ancestor == name) {
                let own = spec.clone();
                spec.apply_section(section, &origin, &home, true);
                spec.lower_limits(&own);
            }
        }
    }
}

/// Returns whether no answer of a mode is milder than that of another.
fn is_as_strict(mode: ApprovalMode, other: ApprovalMode) -> bool {
    ModeAnswers::from_mode(mode).is_as_strict_as(&ModeAnswers::from_mode(other))
}

/// Keys of a profile by which a section gives more.
const GIVING_KEYS: [&str; 5] = ["write", "reveal", "sockets", "env.pass", "env.set"];

/// Returns the lengths of a section's lists, by key.
fn list_lengths(section: &ProfileSection) -> impl Iterator<Item = (&'static str, usize)> {
    let own = [
        ("write", section.write.len()),
        ("hide", section.hide.len()),
        ("reveal", section.reveal.len()),
        ("protect", section.protect.len()),
        ("sockets", section.sockets.len()),
        ("exec.ask", section.exec.ask.len()),
        ("exec.deny", section.exec.deny.len()),
        ("env.pass", section.env.pass.len()),
        ("env.drop", section.env.drop.len()),
        ("env.set", section.env.set.len()),
    ];
    own.into_iter().chain(egress::list_lengths(&section.egress))
}

fn base_of(section: &ProfileSection) -> &str {
    section.extends.as_ref().map_or("workspace", |name| name.0.as_str())
}
