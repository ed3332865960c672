//! The network part of a profile before the workspace is known: adding a section, comparing two profiles,
//! and making the [`EgressRules`] of a run.
//!
//! Must not know files or the order of layers; nor read a secret.

use std::collections::BTreeMap;
use std::path::Path;

use stockade_model::{
    EgressLimits, EgressRules, EgressSecret, RequestPattern, SecretSource, TargetPattern, UpstreamProxy, is_secret_name,
};

use crate::egress_file::{EgressLimitsSection, EgressSection, SecretSection, SecretSourceText, UpstreamSection};
use crate::error::SectionError;
use crate::hosts::{HostEntry, check_breadth};
use crate::spec::{
    SourcedLimits, SourcedValue, ValueOrigin, add_unique, first_failing, lower_limits, raised_limit, report_list,
    values_of,
};

/// Most secrets of one profile, because every request is searched for each of them.
const MAX_SECRETS: usize = 32;

/// A list of patterns: its key, its entries in a section, and its field in a run's rules.
type PatternList<T> = (&'static str, fn(&EgressSection) -> Vec<&[T]>, fn(&mut EgressRules) -> &mut Vec<T>);

const TARGET_LISTS: [PatternList<TargetPattern>; 7] = [
    ("egress.allow", |s| patterns_of(&s.allow), |r| &mut r.allow),
    ("egress.ask", |s| patterns_of(&s.ask), |r| &mut r.ask),
    ("egress.deny", |s| patterns_of(&s.deny), |r| &mut r.deny),
    ("egress.special", |s| s.special.chunks(1).collect(), |r| &mut r.special),
    ("egress.inspect.hosts", |s| patterns_of(&s.inspect.hosts), |r| &mut r.inspect.hosts),
    ("egress.inspect.except", |s| patterns_of(&s.inspect.except), |r| &mut r.inspect.except),
    ("egress.inspect.upgrade", |s| patterns_of(&s.inspect.upgrade), |r| &mut r.inspect.upgrade),
];

const REQUEST_LISTS: [PatternList<RequestPattern>; 2] = [
    ("egress.inspect.allow", |s| s.inspect.allow.chunks(1).collect(), |r| &mut r.inspect.allow),
    ("egress.inspect.deny", |s| s.inspect.deny.chunks(1).collect(), |r| &mut r.inspect.deny),
];

/// A limit: its key, its value in a section, and its field in a run's limits.
type LimitField = (&'static str, fn(&EgressLimitsSection) -> Option<u64>, fn(&mut EgressLimits) -> &mut Option<u64>);

const LIMIT_FIELDS: [LimitField; 6] = [
    ("egress.limits.requests_per_minute", |s| s.requests_per_minute, |l| &mut l.requests_per_minute),
    ("egress.limits.connections_per_second", |s| s.connections_per_second, |l| &mut l.connections_per_second),
    ("egress.limits.connections", |s| s.connections, |l| &mut l.connections),
    ("egress.limits.up_per_second", |s| s.up_per_second.map(|bytes| bytes.0), |l| &mut l.up_bytes_per_second),
    ("egress.limits.down_per_second", |s| s.down_per_second.map(|bytes| bytes.0), |l| &mut l.down_bytes_per_second),
    ("egress.limits.total", |s| s.total.map(|bytes| bytes.0), |l| &mut l.total_bytes),
];

/// The network part of a profile. The home directory is already substituted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EgressSpec {
    targets: [Vec<SourcedValue<TargetPattern>>; TARGET_LISTS.len()],
    requests: [Vec<SourcedValue<RequestPattern>>; REQUEST_LISTS.len()],
    /// By the index of the limit's field.
    limits: SourcedLimits<usize>,
    secrets: BTreeMap<String, SourcedValue<SecretSection>>,
    upstream: Option<SourcedValue<UpstreamSection>>,
}

/// Checks a section of one file for values that no profile can have.
pub(crate) fn check_section(section: &EgressSection) -> Result<(), SectionError> {
    for (i, entry) in section.allow.iter().enumerate() {
        if let Some(why) = entry.patterns().iter().find_map(|pattern| check_breadth(pattern).err()) {
            let hint = "name the hosts, or the domain that owns them";
            return Err((format!("egress.allow[{i}]"), why.to_string(), hint));
        }
    }
    if let Some(i) = section.special.iter().position(|pattern| !pattern.is_of_addresses()) {
        let why = format!("`{}` is not an address", section.special[i]);
        let hint = "`special` lists addresses that names may lead to: `10.1.0.0/16:443`";
        return Err((format!("egress.special[{i}]"), why, hint));
    }
    if let Some((key, ..)) = LIMIT_FIELDS.iter().find(|(_, written, _)| written(&section.limits) == Some(0)) {
        let hint = "leave `allow` empty, or deny `*`, to reach nothing";
        return Err(((*key).to_owned(), "with a limit of zero, no host can be reached".to_owned(), hint));
    }
    if section.secrets.len() > MAX_SECRETS {
        return Err(("egress.secrets".to_owned(), format!("at most {MAX_SECRETS} secrets"), "split the profile"));
    }
    section.secrets.iter().try_for_each(|(name, secret)| check_secret(name, secret))
}

fn check_secret(name: &str, secret: &SecretSection) -> Result<(), SectionError> {
    let fail = |rest: &str, why: String, hint| Err((format!("egress.secrets.{name}{rest}"), why, hint));
    if !is_secret_name(name) {
        let hint = "a name is letters, digits, `-` and `_`, at most 64";
        return fail("", format!("`{name}` is not a valid secret name"), hint);
    }
    let named = |entry: &HostEntry| {
        let narrow = |pattern: &TargetPattern| check_breadth(pattern).is_ok() && !pattern.is_any_host();
        entry.patterns().iter().all(narrow)
    };
    if secret.hosts.is_empty() || !secret.hosts.iter().all(named) {
        let why = format!("`{name}` could be sent to any host, or to none");
        return fail(".hosts", why, "name the hosts that may receive it");
    }
    match &secret.from {
        SecretSourceText::File(path) if path.is_in_workspace() => {
            let why = format!("`{path}` lies in the workspace, where a run reads it anyway");
            fail(".from", why, "keep it outside, e.g. `file ~/.config/NAME`")
        }
        _ => Ok(()),
    }
}

/// Keys by which a section gives more.
pub(crate) const GIVING_KEYS: [&str; 7] = [
    "egress.allow",
    "egress.special",
    "egress.inspect.except",
    "egress.inspect.allow",
    "egress.inspect.upgrade",
    "egress.secrets",
    "egress.upstream",
];

/// Returns the lengths of a section's lists, by key.
pub(crate) fn list_lengths(section: &EgressSection) -> impl Iterator<Item = (&'static str, usize)> {
    fn lengths<T>(lists: &[PatternList<T>], section: &EgressSection) -> Vec<(&'static str, usize)> {
        lists.iter().map(|(key, written, _)| (*key, written(section).into_iter().map(<[T]>::len).sum())).collect()
    }
    lengths(&TARGET_LISTS, section).into_iter().chain(lengths(&REQUEST_LISTS, section))
}

fn patterns_of(entries: &[HostEntry]) -> Vec<&[TargetPattern]> {
    entries.iter().map(HostEntry::patterns).collect()
}

/// Adds the entries of the lists of a section. If `takes_only`, lists that give more are left out.
fn add_lists<T: Clone + PartialEq>(
    lists: &[PatternList<T>],
    own: &mut [Vec<SourcedValue<T>>],
    section: &EgressSection,
    takes_only: bool,
    origin: &dyn Fn(&str) -> ValueOrigin,
) {
    for ((key, written, _), own) in
        lists.iter().zip(own).filter(|((key, ..), _)| !takes_only || !GIVING_KEYS.contains(key))
    {
        for (i, patterns) in written(section).into_iter().enumerate() {
            for pattern in patterns {
                add_unique(own, pattern.clone(), origin(&format!("{key}[{i}]")));
            }
        }
    }
}

impl EgressSpec {
    /// Adds a section. No later section removes an entry of `deny` or `ask`; a limit, a secret and the
    /// proxy are those of the last section that sets them. If `takes_only`, keys that give more are left out.
    pub(crate) fn apply_section(
        &mut self,
        section: &EgressSection,
        origin: &dyn Fn(&str) -> ValueOrigin,
        home: &Path,
        takes_only: bool,
    ) {
        add_lists(&TARGET_LISTS, &mut self.targets, section, takes_only, origin);
        add_lists(&REQUEST_LISTS, &mut self.requests, section, takes_only, origin);
        for (i, (key, written, _)) in LIMIT_FIELDS.iter().enumerate() {
            if let Some(value) = written(&section.limits) {
                self.limits.insert(i, SourcedValue::new(value, origin(key)));
            }
        }
        for (name, secret) in section.secrets.iter().filter(|_| !takes_only) {
            let secret = SecretSection {
                from: secret.from.with_home(home),
                inside: secret.inside.as_ref().map(|source| source.with_home(home)),
                ..secret.clone()
            };
            let from = origin(&format!("egress.secrets.{name}"));
            self.secrets.insert(name.clone(), SourcedValue::new(secret, from));
        }
        if let Some(upstream) = section.upstream.as_ref().filter(|_| !takes_only) {
            let credentials = upstream.credentials.as_ref().map(|source| source.with_home(home));
            let upstream = UpstreamSection { credentials, ..upstream.clone() };
            self.upstream = Some(SourcedValue::new(upstream, origin("egress.upstream")));
        }
    }

    /// Takes the lower of the two values for each limit.
    pub(crate) fn lower_limits(&mut self, other: &Self) {
        lower_limits(&mut self.limits, &other.limits);
    }

    /// Returns the first limit that is higher here than in `base`, or that only `base` has, and its value there.
    pub(crate) fn raised_limit(&self, base: &Self) -> Option<(&'static str, u64)> {
        let i = raised_limit(&self.limits, &base.limits)?;
        Some((LIMIT_FIELDS[i].0, base.limits[&i].value))
    }

    /// Returns the first key in which this part gives more than `base`, if any. In doubt, the result is
    /// "wider". Requests that `inspect.allow` names are the only ones of their host. So one more entry gives
    /// more, and so does the removal of the last one.
    pub(crate) fn wider_than(&self, base: &Self) -> Option<&'static str> {
        fn contains_all<T: PartialEq>(whole: &[SourcedValue<T>], part: &[SourcedValue<T>]) -> bool {
            part.iter().all(|entry| whole.iter().any(|own| own.value == entry.value))
        }
        let covers = |list: &[SourcedValue<TargetPattern>], part: &SourcedValue<TargetPattern>| {
            list.iter().any(|entry| entry.value.covers(&part.value))
        };
        let [allow, ask, deny, special, hosts, except, upgrade] = &self.targets;
        let [base_allow, base_ask, base_deny, base_special, base_hosts, base_except, base_upgrade] = &base.targets;
        let ([requests, denied], [base_requests, base_denied]) = (&self.requests, &base.requests);
        let is_admitted =
            |own: &SourcedValue<TargetPattern>| base_allow.iter().any(|entry| entry.value.admits_all(&own.value));
        let same_requests = contains_all(requests, base_requests) && contains_all(base_requests, requests);
        let is_known = |(name, own): (&String, &SourcedValue<SecretSection>)| {
            base.secrets.get(name).is_some_and(|secret| secret.value == own.value)
        };
        let proxy = |spec: &Self| spec.upstream.as_ref().map(|upstream| upstream.value.clone());
        let lists = first_failing([
            ("egress.allow", allow.iter().all(is_admitted)),
            ("egress.ask", base_ask.iter().all(|entry| covers(ask, entry) || covers(deny, entry))),
            ("egress.deny", base_deny.iter().all(|entry| covers(deny, entry))),
            ("egress.special", special.iter().all(|own| covers(base_special, own))),
        ]);
        let others = || {
            first_failing([
                ("egress.inspect.hosts", contains_all(hosts, base_hosts)),
                ("egress.inspect.except", contains_all(base_except, except)),
                ("egress.inspect.upgrade", contains_all(base_upgrade, upgrade)),
                ("egress.inspect.deny", contains_all(denied, base_denied)),
                ("egress.inspect.allow", same_requests || base_requests.is_empty()),
                ("egress.secrets", self.secrets.iter().all(is_known)),
                ("egress.upstream", proxy(self) == proxy(base)),
            ])
        };
        lists.or_else(|| self.raised_limit(base).map(|(key, _)| key)).or_else(others)
    }

    /// Reports every entry, with its key.
    pub(crate) fn report_entries(&self, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        for ((key, ..), list) in TARGET_LISTS.iter().zip(&self.targets) {
            report_list(key, list, line);
        }
        for ((key, ..), list) in REQUEST_LISTS.iter().zip(&self.requests) {
            report_list(key, list, line);
        }
        for (i, entry) in &self.limits {
            line(LIMIT_FIELDS[*i].0, entry.value.to_string(), &entry.origin);
        }
        for (name, secret) in &self.secrets {
            line(&format!("egress.secrets.{name}"), shown_secret(&secret.value), &secret.origin);
        }
        if let Some(upstream) = &self.upstream {
            line("egress.upstream", shown_upstream(&upstream.value), &upstream.origin);
        }
    }

    /// Returns the egress rules of a run in this workspace.
    pub(crate) fn of_run(&self, home: &Path, workspace: &Path) -> EgressRules {
        let source = |source: &SecretSourceText| source.resolve_source(home, workspace);
        let secret = |(name, entry): (&String, &SourcedValue<SecretSection>)| EgressSecret {
            name: name.clone(),
            from: source(&entry.value.from),
            hosts: flatten_patterns(&entry.value.hosts),
            kind: entry.value.kind.0.clone(),
            inside: source(entry.value.inside.as_ref().unwrap_or(&entry.value.from)),
        };
        let upstream = |entry: &SourcedValue<UpstreamSection>| UpstreamProxy {
            kind: entry.value.proxy.kind,
            proxy: entry.value.proxy.target.clone(),
            credentials: entry.value.credentials.as_ref().map(source),
            except: flatten_patterns(&entry.value.except),
        };
        let mut rules = EgressRules {
            secrets: self.secrets.iter().map(secret).collect(),
            upstream: self.upstream.as_ref().map(upstream),
            ..EgressRules::default()
        };
        for ((_, _, slot), list) in TARGET_LISTS.iter().zip(&self.targets) {
            *slot(&mut rules) = values_of(list);
        }
        for ((_, _, slot), list) in REQUEST_LISTS.iter().zip(&self.requests) {
            *slot(&mut rules) = values_of(list);
        }
        for (i, entry) in &self.limits {
            *LIMIT_FIELDS[*i].2(&mut rules.limits) = Some(entry.value);
        }
        rules
    }
}

fn flatten_patterns(entries: &[HostEntry]) -> Vec<TargetPattern> {
    entries.iter().flat_map(HostEntry::patterns).cloned().collect()
}

fn shown_secret(secret: &SecretSection) -> String {
    let inside = secret.inside.as_ref().unwrap_or(&secret.from);
    let hosts: Vec<String> = flatten_patterns(&secret.hosts).iter().map(TargetPattern::to_string).collect();
    format!("{} as {} to {}, inside as {inside}", secret.from, secret.kind, hosts.join(", "))
}

fn shown_upstream(upstream: &UpstreamSection) -> String {
    let mut text = upstream.proxy.to_string();
    if let Some(source) = &upstream.credentials {
        text += &format!(", credentials of {source}");
    }
    let except: Vec<String> = flatten_patterns(&upstream.except).iter().map(TargetPattern::to_string).collect();
    if except.is_empty() { text } else { format!("{text}, except {}", except.join(", ")) }
}

impl SecretSourceText {
    fn with_home(&self, home: &Path) -> Self {
        match self {
            Self::Env(name) => Self::Env(name.clone()),
            Self::File(path) => Self::File(path.with_home(home)),
        }
    }

    fn resolve_source(&self, home: &Path, workspace: &Path) -> SecretSource {
        match self {
            Self::Env(name) => SecretSource::Env(name.0.clone()),
            Self::File(path) => SecretSource::File(path.resolve_path(home, workspace).into()),
        }
    }
}
