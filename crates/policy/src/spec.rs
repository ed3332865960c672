//! A profile before the workspace is known: lists whose every entry has its origin. Adds sections, and
//! compares two profiles.
//!
//! Must not know files or the order of layers; `merge` decides which sections may be added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use stockade_model::{DEFAULT_UNDO_BYTES, DroppedVariables, LimitKind, Limits, NetworkAccess, ProgramPattern, RawText};

use crate::egress::EgressSpec;
use crate::error::TextPosition;
use crate::file::ProfileSection;
use crate::text::{ConfigPath, DropPattern, PassPattern, ProtectedName};
use stockade_model::text_matches;

/// Layer of a configuration file. Later layers outweigh earlier ones, but the project's may only tighten
/// (L7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigLayer {
    /// Mandatory configuration of the administrator: `/etc/stockade/managed.toml`. The file is applied
    /// first, as defaults, and again at the end, so that no other layer undoes it.
    Managed,
    /// Defaults of the machine: `/etc/stockade/config.toml`.
    System,
    /// Configuration of the user: `$XDG_CONFIG_HOME/stockade/config.toml`.
    User,
    /// Configuration of the workspace: `.stockade.toml` or `.stockade/config.toml`.
    Project,
    /// Configuration of one session, given by the creator of the session.
    Session,
}

impl ConfigLayer {
    /// Returns whether the layer may only tighten, because it is not the user's own (L7).
    pub fn only_narrows(self) -> bool {
        matches!(self, Self::Project | Self::Session)
    }
}

impl fmt::Display for ConfigLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Managed => "managed",
            Self::System => "system",
            Self::User => "user",
            Self::Project => "project",
            Self::Session => "session",
        })
    }
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// The built-in default.
    Default,
    /// A file of `policies/`, with its reason.
    Shipped {
        /// Name of the file.
        file: &'static str,
        /// Reason of the entry.
        reason: &'static str,
    },
    /// A configuration file.
    File {
        /// Layer of the file.
        layer: ConfigLayer,
        /// Path of the file.
        path: PathBuf,
        /// Position in the file.
        position: Option<TextPosition>,
    },
}

impl ValueOrigin {
    /// Returns the layer of the origin; `None` for a built-in value.
    pub fn layer(&self) -> Option<ConfigLayer> {
        match self {
            Self::Default | Self::Shipped { .. } => None,
            Self::File { layer, .. } => Some(*layer),
        }
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Shipped { file, reason } => write!(f, "built in, policies/{file}: {reason}"),
            Self::File { layer, path, position } => {
                write!(f, "{layer} configuration, {}", RawText::from(path.as_path()).to_escaped())?;
                position.map_or(Ok(()), |position| write!(f, ":{position}"))
            }
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcedValue<T> {
    /// The value.
    pub value: T,
    /// Origin of the value.
    pub origin: ValueOrigin,
}

impl<T> SourcedValue<T> {
    pub(crate) fn new(value: T, origin: ValueOrigin) -> Self {
        Self { value, origin }
    }
}

/// Limits with their origins, by kind. An absent limit is higher than any.
pub(crate) type SourcedLimits<K> = BTreeMap<K, SourcedValue<u64>>;

/// Takes the lower of the two values for each limit.
pub(crate) fn lower_limits<K: Ord + Copy>(limits: &mut SourcedLimits<K>, other: &SourcedLimits<K>) {
    for (limit, entry) in other {
        if limits.get(limit).is_none_or(|own| entry.value < own.value) {
            limits.insert(*limit, entry.clone());
        }
    }
}

/// Returns the first limit of `base` that is higher in `limits`, or absent there.
pub(crate) fn raised_limit<K: Ord + Copy>(limits: &SourcedLimits<K>, base: &SourcedLimits<K>) -> Option<K> {
    let is_raised =
        |(limit, entry): &(&K, &SourcedValue<u64>)| limits.get(limit).is_none_or(|own| own.value > entry.value);
    base.iter().find(is_raised).map(|(limit, _)| *limit)
}

/// A profile before the workspace is known. The home directory is already substituted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileSpec {
    /// The profiles that this one extends, nearest first: additions to them are additions to this one.
    pub lineage: Vec<String>,
    pub summary: String,
    pub sandboxed: bool,
    pub network: NetworkAccess,
    pub write: Vec<SourcedValue<ConfigPath>>,
    pub hide: Vec<SourcedValue<ConfigPath>>,
    pub reveal: Vec<SourcedValue<ConfigPath>>,
    pub protect: Vec<SourcedValue<ProtectedName>>,
    pub sockets: Vec<SourcedValue<ConfigPath>>,
    pub stage: Option<SourcedValue<bool>>,
    pub undo: Option<SourcedValue<bool>>,
    pub undo_bytes: Option<SourcedValue<u64>>,
    pub caches: Option<SourcedValue<bool>>,
    pub exec_ask: Vec<SourcedValue<ProgramPattern>>,
    pub exec_deny: Vec<SourcedValue<ProgramPattern>>,
    pub pass: Vec<SourcedValue<PassPattern>>,
    pub drop: Vec<SourcedValue<DropPattern>>,
    pub set: BTreeMap<String, SourcedValue<String>>,
    pub limits: SourcedLimits<LimitKind>,
    pub egress: EgressSpec,
}

pub(crate) fn add_unique<T: PartialEq>(list: &mut Vec<SourcedValue<T>>, value: T, origin: ValueOrigin) {
    if !list.iter().any(|entry| entry.value == value) {
        list.push(SourcedValue::new(value, origin));
    }
}

/// Adds each value that a list lacks; `origin` returns the origin of a value by its index.
pub(crate) fn add_values<T: PartialEq>(
    list: &mut Vec<SourcedValue<T>>,
    values: impl IntoIterator<Item = T>,
    origin: impl Fn(usize) -> ValueOrigin,
) {
    for (i, value) in values.into_iter().enumerate() {
        add_unique(list, value, origin(i));
    }
}

/// Returns the values of a list.
pub(crate) fn values_of<T: Clone>(list: &[SourcedValue<T>]) -> Vec<T> {
    list.iter().map(|entry| entry.value.clone()).collect()
}

/// Reports the entries of a list under its key.
pub(crate) fn report_list<T: fmt::Display>(
    key: &str,
    list: &[SourcedValue<T>],
    line: &mut dyn FnMut(&str, String, &ValueOrigin),
) {
    list.iter().for_each(|entry| line(key, entry.value.to_string(), &entry.origin));
}

/// Returns the first key whose condition does not hold.
pub(crate) fn first_failing<const N: usize>(conditions: [(&'static str, bool); N]) -> Option<&'static str> {
    conditions.into_iter().find(|(_, holds)| !holds).map(|(key, _)| key)
}

/// Returns whether every value of `part` is in `whole`.
fn is_subset<T: Ord>(part: &[SourcedValue<T>], whole: &[SourcedValue<T>]) -> bool {
    let whole: BTreeSet<&T> = whole.iter().map(|entry| &entry.value).collect();
    part.iter().all(|entry| whole.contains(&entry.value))
}

impl ProfileSpec {
    /// Adds a section. Within the section, entries that take outweigh entries that give; the section
    /// outweighs earlier entries. If `takes_only`, keys that give more are left out. `origin` returns the
    /// origin of a key of the section.
    pub(crate) fn apply_section(
        &mut self,
        section: &ProfileSection,
        origin: &dyn Fn(&str) -> ValueOrigin,
        home: &Path,
        takes_only: bool,
    ) {
        let item = |key: &str, i: usize| origin(&format!("{key}[{i}]"));
        let in_home = |list: &[ConfigPath]| list.iter().map(|path| path.with_home(home)).collect::<Vec<_>>();
        // Within one section the nearest entry decides; of equal ones, `hide`.
        let hidden = in_home(&section.hide);
        if !takes_only {
            add_values(&mut self.write, in_home(&section.write), |i| item("write", i));
            add_values(&mut self.sockets, in_home(&section.sockets), |i| item("sockets", i));
        }
        for (i, path) in hidden.iter().enumerate() {
            self.hide_path(path.clone(), item("hide", i));
        }
        add_values(&mut self.protect, section.protect.iter().cloned(), |i| item("protect", i));
        add_values(&mut self.exec_ask, section.exec.ask.iter().cloned(), |i| item("exec.ask", i));
        add_values(&mut self.exec_deny, section.exec.deny.iter().cloned(), |i| item("exec.deny", i));
        if !takes_only {
            for (i, path) in in_home(&section.reveal).into_iter().enumerate().filter(|(_, path)| !hidden.contains(path))
            {
                self.reveal_path(path, item("reveal", i));
            }
            for (i, name) in section.env.pass.iter().enumerate() {
                self.pass_variables(name.clone(), item("env.pass", i));
            }
            for (name, value) in &section.env.set {
                self.set.insert(name.clone(), SourcedValue::new(value.clone(), origin(&format!("env.set.{name}"))));
            }
            if let Some(bytes) = section.undo_bytes {
                self.undo_bytes = Some(SourcedValue::new(bytes.0, origin("undo_bytes")));
            }
        }
        for (i, name) in section.env.drop.iter().enumerate() {
            self.drop(name.clone(), item("env.drop", i));
        }
        let flags = [
            ("stage", &mut self.stage, section.stage, true),
            ("undo", &mut self.undo, section.undo, true),
            ("caches", &mut self.caches, section.caches, false),
        ];
        for (key, slot, value, takes) in flags {
            if let Some(value) = value.filter(|value| !takes_only || *value == takes) {
                *slot = Some(SourcedValue::new(value, origin(key)));
            }
        }
        self.apply_limits(&section.limits.to_limits(), origin);
        self.egress.apply_section(&section.egress, origin, home, takes_only);
    }

    pub(crate) fn apply_limits(&mut self, limits: &Limits, origin: &dyn Fn(&str) -> ValueOrigin) {
        for (limit, amount) in limits.iter_limits() {
            self.limits.insert(limit, SourcedValue::new(amount, origin(limit.key())));
        }
    }

    /// Takes the lower of its own limits and those of another profile.
    pub(crate) fn lower_limits(&mut self, other: &Self) {
        let mut limits = other.limits.clone();
        lower_limits(&mut limits, &self.limits);
        self.limits = limits;
        self.egress.lower_limits(&other.egress);
    }

    /// Returns the first limit that is higher here than in `base`, or that only `base` has, and its value there.
    pub(crate) fn raised_limit(&self, base: &Self) -> Option<(&'static str, String)> {
        let own = raised_limit(&self.limits, &base.limits);
        let own = own.map(|limit| (limit.key(), limit.format_amount(base.limits[&limit].value)));
        own.or_else(|| self.egress.raised_limit(&base.egress).map(|(key, amount)| (key, amount.to_string())))
    }

    /// Returns whether writes to the workspace wait for a commit.
    pub(crate) fn has_staged_writes(&self) -> bool {
        self.stage.as_ref().is_some_and(|entry| entry.value)
    }

    /// Returns whether changes of a run can be undone.
    pub(crate) fn has_undo(&self) -> bool {
        self.undo.as_ref().is_some_and(|entry| entry.value)
    }

    /// Returns the limit for undo data of a run, in bytes.
    pub(crate) fn undo_bytes(&self) -> u64 {
        self.undo_bytes.as_ref().map_or(DEFAULT_UNDO_BYTES, |entry| entry.value)
    }

    /// Returns whether the caches of tools are layers of the workspace.
    pub(crate) fn has_caches(&self) -> bool {
        self.caches.as_ref().is_some_and(|entry| entry.value)
    }

    /// Hides a path. Entries at or beneath it are no longer revealed.
    pub(crate) fn hide_path(&mut self, path: ConfigPath, origin: ValueOrigin) {
        self.reveal.retain(|entry| !entry.value.is_beneath(&path));
        self.sockets.retain(|entry| !entry.value.is_beneath(&path));
        add_unique(&mut self.hide, path, origin);
    }

    fn reveal_path(&mut self, path: ConfigPath, origin: ValueOrigin) {
        self.hide.retain(|entry| entry.value != path);
        add_unique(&mut self.reveal, path, origin);
    }

    pub(crate) fn pass_variables(&mut self, pattern: PassPattern, origin: ValueOrigin) {
        self.drop.retain(|entry| entry.value.as_str() != pattern.as_str());
        add_unique(&mut self.pass, pattern, origin);
    }

    pub(crate) fn drop(&mut self, pattern: DropPattern, origin: ValueOrigin) {
        self.pass.retain(|entry| !text_matches(pattern.as_str(), entry.value.as_str()));
        self.set.retain(|name, _| !text_matches(pattern.as_str(), name));
        // A file that repeats a shipped pattern makes it stronger: see `dropped_variables`.
        let is_repeated = |entry: &SourcedValue<DropPattern>| {
            entry.value == pattern && matches!(entry.origin, ValueOrigin::Shipped { .. })
        };
        if !matches!(origin, ValueOrigin::Shipped { .. }) {
            self.drop.retain(|entry| !is_repeated(entry));
        }
        add_unique(&mut self.drop, pattern, origin);
    }

    /// Returns the variables that do not pass, and marks those that a configuration file names.
    pub(crate) fn dropped_variables(&self) -> Vec<DroppedVariables> {
        let is_own = |origin: &ValueOrigin| !matches!(origin, ValueOrigin::Shipped { .. });
        let dropped = |entry: &SourcedValue<DropPattern>| DroppedVariables {
            pattern: entry.value.as_str().to_owned(),
            is_own: is_own(&entry.origin),
        };
        self.drop.iter().map(dropped).collect()
    }

    /// Returns the first key in which this profile gives more than `base`, if any. In doubt, the result is
    /// "wider": equal powers in different notation count as wider.
    pub(crate) fn wider_than(&self, base: &Self) -> Option<&'static str> {
        match (base.sandboxed, self.sandboxed) {
            (false, _) => return None,
            (true, false) => return Some("sandboxed"),
            (true, true) => {}
        }
        let beneath_base =
            |entry: &SourcedValue<ConfigPath>| base.write.iter().any(|b| entry.value.is_beneath(&b.value));
        // A refusal comes before a question, so a refused program that is also asked about is not wider.
        let is_kept = |entry: &SourcedValue<ProgramPattern>| {
            self.exec_ask.iter().chain(&self.exec_deny).any(|own| own.value == entry.value)
        };
        let is_known = |(name, entry): (&String, &SourcedValue<String>)| {
            matches!(entry.origin, ValueOrigin::Shipped { .. })
                || base.set.get(name).is_some_and(|before| before.value == entry.value)
        };
        let wider = first_failing([
            ("network", self.network != NetworkAccess::Host || base.network != NetworkAccess::None),
            ("write", self.write.iter().all(beneath_base)),
            // The nearest entry decides, so a hidden path stays hidden only if it is still listed and no new
            // path is revealed.
            ("hide", is_subset(&base.hide, &self.hide)),
            ("reveal", is_subset(&self.reveal, &base.reveal)),
            ("protect", is_subset(&base.protect, &self.protect)),
            ("sockets", is_subset(&self.sockets, &base.sockets)),
            ("stage", !base.has_staged_writes() || self.has_staged_writes()),
            ("undo", !base.has_undo() || self.has_undo()),
            ("caches", !self.has_caches() || base.has_caches()),
            ("exec.deny", is_subset(&base.exec_deny, &self.exec_deny)),
            ("exec.ask", base.exec_ask.iter().all(is_kept)),
            ("env.pass", is_subset(&self.pass, &base.pass)),
            ("env.drop", is_subset(&base.drop, &self.drop)),
            ("env.set", self.set.iter().all(is_known)),
        ]);
        let limit = || raised_limit(&self.limits, &base.limits).map(LimitKind::key);
        wider.or_else(limit).or_else(|| self.egress.wider_than(&base.egress))
    }
}
