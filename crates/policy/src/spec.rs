//! A profile before the workspace is known: lists whose every entry has its origin. Adds sections, and
//! compares two profiles.
//!
//! Must not know files or the order of layers; `merge` decides which sections may be added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use stockade_model::{DEFAULT_UNDO_BYTES, DroppedVariables, Limit, Limits, Network, ProgramPattern, RawText};

use crate::egress::EgressSpec;
use crate::error::Place;
use crate::file::{LimitsSection, ProfileSection};
use crate::text::{ConfigPath, DropPattern, PassPattern, ProtectedName};
use stockade_model::text_matches;

/// Layer of a configuration file. Later layers outweigh earlier ones, but the project's may only tighten
/// (L7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
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

impl Layer {
    /// Returns whether the layer may only tighten, because it is not the user's own (L7).
    pub fn only_narrows(self) -> bool {
        matches!(self, Self::Project | Self::Session)
    }
}

impl fmt::Display for Layer {
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
pub enum Origin {
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
        layer: Layer,
        /// Path of the file.
        path: PathBuf,
        /// Position in the file.
        place: Option<Place>,
    },
}

impl Origin {
    /// Returns the layer of the origin; `None` for a built-in value.
    pub fn layer(&self) -> Option<Layer> {
        match self {
            Self::Default | Self::Shipped { .. } => None,
            Self::File { layer, .. } => Some(*layer),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Shipped { file, reason } => write!(f, "built in, policies/{file}: {reason}"),
            Self::File { layer, path, place } => {
                write!(f, "{layer} configuration, {}", RawText::from(path.as_path()).escaped())?;
                place.map_or(Ok(()), |place| write!(f, ":{place}"))
            }
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Origin of the value.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    pub(crate) fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}

/// Limits with their origins; see [`stockade_model::Limits`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitsSpec(BTreeMap<Limit, Sourced<u64>>);

impl LimitsSpec {
    pub(crate) fn get(&self, limit: Limit) -> Option<u64> {
        self.0.get(&limit).map(|entry| entry.value)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (Limit, &Sourced<u64>)> {
        self.0.iter().map(|(limit, entry)| (*limit, entry))
    }

    /// Returns the lower of the two values for each limit; an absent value is higher than any.
    pub(crate) fn lower_of(mut self, other: &Self) -> Self {
        for (limit, entry) in other.each() {
            if self.get(limit).is_none_or(|own| entry.value < own) {
                self.0.insert(limit, entry.clone());
            }
        }
        self
    }

    pub(crate) fn apply(&mut self, section: &LimitsSection, origin: &dyn Fn(&str) -> Origin) {
        for (limit, amount) in section.limits().each() {
            self.0.insert(limit, Sourced::new(amount, origin(limit.key())));
        }
    }

    /// Returns the limits without their origins.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for (limit, entry) in self.each() {
            limits.set(limit, entry.value);
        }
        limits
    }

    /// Returns the first limit that is higher here, or that only `base` has.
    pub(crate) fn higher_than(&self, base: &Self) -> Option<Limit> {
        base.each().find(|(limit, entry)| self.get(*limit).is_none_or(|own| own > entry.value)).map(|(limit, _)| limit)
    }
}

/// A profile before the workspace is known. The home directory is already substituted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileSpec {
    /// The profiles that this one extends, nearest first: additions to them are additions to this one.
    pub lineage: Vec<String>,
    pub summary: String,
    pub sandboxed: bool,
    pub network: Network,
    pub write: Vec<Sourced<ConfigPath>>,
    pub hide: Vec<Sourced<ConfigPath>>,
    pub reveal: Vec<Sourced<ConfigPath>>,
    pub protect: Vec<Sourced<ProtectedName>>,
    pub sockets: Vec<Sourced<ConfigPath>>,
    pub stage: Option<Sourced<bool>>,
    pub undo: Option<Sourced<bool>>,
    pub undo_bytes: Option<Sourced<u64>>,
    pub caches: Option<Sourced<bool>>,
    pub exec_ask: Vec<Sourced<ProgramPattern>>,
    pub exec_deny: Vec<Sourced<ProgramPattern>>,
    pub pass: Vec<Sourced<PassPattern>>,
    pub drop: Vec<Sourced<DropPattern>>,
    pub set: BTreeMap<String, Sourced<String>>,
    pub limits: LimitsSpec,
    pub egress: EgressSpec,
}

pub(crate) fn add<T: PartialEq>(list: &mut Vec<Sourced<T>>, value: T, origin: Origin) {
    if !list.iter().any(|entry| entry.value == value) {
        list.push(Sourced::new(value, origin));
    }
}

/// Returns whether every value of `part` is in `whole`.
fn is_subset<T: Ord>(part: &[Sourced<T>], whole: &[Sourced<T>]) -> bool {
    let whole: BTreeSet<&T> = whole.iter().map(|entry| &entry.value).collect();
    part.iter().all(|entry| whole.contains(&entry.value))
}

impl ProfileSpec {
    /// Adds a section. Within the section, entries that take outweigh entries that give; the section
    /// outweighs earlier entries. `origin` returns the origin of a key of the section.
    pub(crate) fn apply(&mut self, section: &ProfileSection, origin: &dyn Fn(&str) -> Origin, home: &std::path::Path) {
        let item = |key: &str, i: usize| origin(&format!("{key}[{i}]"));
        for (i, path) in section.write.iter().enumerate() {
            add(&mut self.write, path.with_home(home), item("write", i));
        }
        for (i, path) in section.sockets.iter().enumerate() {
            add(&mut self.sockets, path.with_home(home), item("sockets", i));
        }
        // Within one section the nearest entry decides; of equal ones, `hide`.
        for (i, path) in section.hide.iter().enumerate() {
            self.hide(path.with_home(home), item("hide", i));
        }
        let hidden: Vec<ConfigPath> = section.hide.iter().map(|path| path.with_home(home)).collect();
        for (i, path) in section.reveal.iter().map(|path| path.with_home(home)).enumerate() {
            if !hidden.contains(&path) {
                self.reveal(path, item("reveal", i));
            }
        }
        for (i, name) in section.protect.iter().enumerate() {
            add(&mut self.protect, name.clone(), item("protect", i));
        }
        for (i, program) in section.exec.ask.iter().enumerate() {
            add(&mut self.exec_ask, program.clone(), item("exec.ask", i));
        }
        for (i, program) in section.exec.deny.iter().enumerate() {
            add(&mut self.exec_deny, program.clone(), item("exec.deny", i));
        }
        for (i, name) in section.env.pass.iter().enumerate() {
            self.pass(name.clone(), item("env.pass", i));
        }
        for (name, value) in &section.env.set {
            self.set.insert(name.clone(), Sourced::new(value.clone(), origin(&format!("env.set.{name}"))));
        }
        for (i, name) in section.env.drop.iter().enumerate() {
            self.drop(name.clone(), item("env.drop", i));
        }
        if let Some(stage) = section.stage {
            self.stage = Some(Sourced::new(stage, origin("stage")));
        }
        if let Some(undo) = section.undo {
            self.undo = Some(Sourced::new(undo, origin("undo")));
        }
        if let Some(bytes) = section.undo_bytes {
            self.undo_bytes = Some(Sourced::new(bytes.0, origin("undo_bytes")));
        }
        if let Some(caches) = section.caches {
            self.caches = Some(Sourced::new(caches, origin("caches")));
        }
        self.limits.apply(&section.limits, origin);
        self.egress.apply(&section.egress, origin, home);
    }

    /// Takes the lower of its own limits and those of another profile.
    pub(crate) fn lower_limits(&mut self, other: &Self) {
        self.limits = other.limits.clone().lower_of(&self.limits);
        self.egress.lower_limits(&other.egress);
    }

    /// Returns whether writes to the workspace wait for a commit.
    pub(crate) fn stages(&self) -> bool {
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
    pub(crate) fn hide(&mut self, path: ConfigPath, origin: Origin) {
        self.reveal.retain(|entry| !entry.value.is_beneath(&path));
        self.sockets.retain(|entry| !entry.value.is_beneath(&path));
        add(&mut self.hide, path, origin);
    }

    fn reveal(&mut self, path: ConfigPath, origin: Origin) {
        self.hide.retain(|entry| entry.value != path);
        add(&mut self.reveal, path, origin);
    }

    pub(crate) fn pass(&mut self, pattern: PassPattern, origin: Origin) {
        self.drop.retain(|entry| entry.value.as_str() != pattern.as_str());
        add(&mut self.pass, pattern, origin);
    }

    pub(crate) fn drop(&mut self, pattern: DropPattern, origin: Origin) {
        self.pass.retain(|entry| !text_matches(pattern.as_str(), entry.value.as_str()));
        self.set.retain(|name, _| !text_matches(pattern.as_str(), name));
        // A file that repeats a shipped pattern makes it stronger: see `dropped_variables`.
        let is_repeated =
            |entry: &Sourced<DropPattern>| entry.value == pattern && matches!(entry.origin, Origin::Shipped { .. });
        if !matches!(origin, Origin::Shipped { .. }) {
            self.drop.retain(|entry| !is_repeated(entry));
        }
        add(&mut self.drop, pattern, origin);
    }

    /// Returns the variables that do not pass, and marks those that a configuration file names.
    pub(crate) fn dropped_variables(&self) -> Vec<DroppedVariables> {
        let is_own = |origin: &Origin| !matches!(origin, Origin::Shipped { .. });
        let dropped = |entry: &Sourced<DropPattern>| DroppedVariables {
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
        if self.network == Network::Host && base.network == Network::None {
            return Some("network");
        }
        let beneath_base = |entry: &Sourced<ConfigPath>| base.write.iter().any(|b| entry.value.is_beneath(&b.value));
        if !self.write.iter().all(beneath_base) {
            return Some("write");
        }
        // The nearest entry decides, so a hidden path stays hidden only if it is still listed and no new
        // path is revealed.
        if !is_subset(&base.hide, &self.hide) {
            return Some("hide");
        }
        if !is_subset(&self.reveal, &base.reveal) {
            return Some("reveal");
        }
        if !is_subset(&base.protect, &self.protect) {
            return Some("protect");
        }
        if !is_subset(&self.sockets, &base.sockets) {
            return Some("sockets");
        }
        if base.stages() && !self.stages() {
            return Some("stage");
        }
        if base.has_undo() && !self.has_undo() {
            return Some("undo");
        }
        if self.has_caches() && !base.has_caches() {
            return Some("caches");
        }
        // A refusal comes before a question, so a refused program that is also asked about is not wider.
        if !is_subset(&base.exec_deny, &self.exec_deny) {
            return Some("exec.deny");
        }
        let is_kept = |entry: &Sourced<ProgramPattern>| {
            self.exec_ask.iter().chain(&self.exec_deny).any(|own| own.value == entry.value)
        };
        if !base.exec_ask.iter().all(is_kept) {
            return Some("exec.ask");
        }
        let limit = || self.limits.higher_than(&base.limits).map(Limit::key);
        self.environment_wider_than(base).or_else(limit).or_else(|| self.egress.wider_than(&base.egress))
    }

    fn environment_wider_than(&self, base: &Self) -> Option<&'static str> {
        if !is_subset(&self.pass, &base.pass) {
            return Some("env.pass");
        }
        if !is_subset(&base.drop, &self.drop) {
            return Some("env.drop");
        }
        let known = |(name, entry): (&String, &Sourced<String>)| {
            matches!(entry.origin, Origin::Shipped { .. })
                || base.set.get(name).is_some_and(|before| before.value == entry.value)
        };
        if !self.set.iter().all(known) { Some("env.set") } else { None }
    }
}
