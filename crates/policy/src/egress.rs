//! The network part of a profile before the workspace is known: adding a section, comparing two profiles,
//! and making the [`EgressRules`] of a run.
//!
//! Must not know files or the order of layers; nor read a secret.

use std::collections::BTreeMap;
use std::path::Path;

use stockade_model::{
    EgressLimits, EgressRules, EgressSecret, InspectionRules, RequestPattern, SecretSource, TargetPattern,
    UpstreamProxy, is_secret_name,
};

use crate::egress_file::{EgressLimitsSection, EgressSection, SecretSection, SecretSourceText, UpstreamSection};
use crate::hosts::{HostEntry, check_breadth};
use crate::spec::{SourcedValue, ValueOrigin, add_unique, add_values, first_failing};

/// Most secrets of one profile, because every request is searched for each of them.
const MAX_SECRETS: usize = 32;

/// One limit: its key, its value in a section, and its field in a run's limits.
struct EgressLimitField {
    key: &'static str,
    written: fn(&EgressLimitsSection) -> Option<u64>,
    slot: fn(&mut EgressLimits) -> &mut Option<u64>,
}

const LIMIT_FIELDS: [EgressLimitField; 6] = [
    EgressLimitField {
        key: "egress.limits.requests_per_minute",
        written: |section| section.requests_per_minute,
        slot: |limits| &mut limits.requests_per_minute,
    },
    EgressLimitField {
        key: "egress.limits.connections_per_second",
        written: |section| section.connections_per_second,
        slot: |limits| &mut limits.connections_per_second,
    },
    EgressLimitField {
        key: "egress.limits.connections",
        written: |section| section.connections,
        slot: |limits| &mut limits.connections,
    },
    EgressLimitField {
        key: "egress.limits.up_per_second",
        written: |section| section.up_per_second.map(|bytes| bytes.0),
        slot: |limits| &mut limits.up_bytes_per_second,
    },
    EgressLimitField {
        key: "egress.limits.down_per_second",
        written: |section| section.down_per_second.map(|bytes| bytes.0),
        slot: |limits| &mut limits.down_bytes_per_second,
    },
    EgressLimitField {
        key: "egress.limits.total",
        written: |section| section.total.map(|bytes| bytes.0),
        slot: |limits| &mut limits.total_bytes,
    },
];

/// The network part of a profile. The home directory is already substituted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EgressSpec {
    allow: Vec<SourcedValue<TargetPattern>>,
    ask: Vec<SourcedValue<TargetPattern>>,
    deny: Vec<SourcedValue<TargetPattern>>,
    special: Vec<SourcedValue<TargetPattern>>,
    limits: [Option<SourcedValue<u64>>; LIMIT_FIELDS.len()],
    inspect: InspectSpec,
    secrets: BTreeMap<String, SourcedValue<SecretSection>>,
    upstream: Option<SourcedValue<UpstreamSection>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InspectSpec {
    hosts: Vec<SourcedValue<TargetPattern>>,
    except: Vec<SourcedValue<TargetPattern>>,
    allow: Vec<SourcedValue<RequestPattern>>,
    deny: Vec<SourcedValue<RequestPattern>>,
    upgrade: Vec<SourcedValue<TargetPattern>>,
}

/// Error in a section: its key, the reason, and advice.
pub(crate) struct EgressSectionError {
    pub key: String,
    pub why: String,
    pub hint: &'static str,
}

/// Checks a section of one file for values that no profile can have.
pub(crate) fn check_section(section: &EgressSection) -> Result<(), EgressSectionError> {
    let fault = |key: String, why: String, hint| Err(EgressSectionError { key, why, hint });
    for (i, entry) in section.allow.iter().enumerate() {
        if let Some(why) = entry.patterns().iter().find_map(|pattern| check_breadth(pattern).err()) {
            return fault(
                format!("egress.allow[{i}]"),
                why.to_string(),
                "name the hosts, or the domain that owns them",
            );
        }
    }
    if let Some(i) = section.special.iter().position(|pattern| !pattern.is_of_addresses()) {
        let why = format!("`{}` is not an address", section.special[i]);
        let hint = "`special` lists addresses that names may lead to: `10.1.0.0/16:443`";
        return fault(format!("egress.special[{i}]"), why, hint);
    }
    for (limit, value) in LIMIT_FIELDS.iter().map(|limit| (limit, (limit.written)(&section.limits))) {
        if value == Some(0) {
            let hint = "leave `allow` empty, or deny `*`, to reach nothing";
            return fault(limit.key.to_owned(), "with a limit of zero, no host can be reached".to_owned(), hint);
        }
    }
    if section.secrets.len() > MAX_SECRETS {
        let why = format!("at most {MAX_SECRETS} secrets");
        return fault("egress.secrets".to_owned(), why, "split the profile");
    }
    section.secrets.iter().try_for_each(|(name, secret)| check_secret(name, secret))
}

fn check_secret(name: &str, secret: &SecretSection) -> Result<(), EgressSectionError> {
    let key = |rest: &str| format!("egress.secrets.{name}{rest}");
    if !is_secret_name(name) {
        let why = format!("`{name}` is not a valid secret name");
        return Err(EgressSectionError {
            key: key(""),
            why,
            hint: "a name is letters, digits, `-` and `_`, at most 64",
        });
    }
    let named = |entry: &HostEntry| {
        let narrow = |pattern: &TargetPattern| check_breadth(pattern).is_ok() && !pattern.is_any_host();
        entry.patterns().iter().all(narrow)
    };
    if secret.hosts.is_empty() || !secret.hosts.iter().all(named) {
        let why = format!("`{name}` could be sent to any host, or to none");
        return Err(EgressSectionError { key: key(".hosts"), why, hint: "name the hosts that may receive it" });
    }
    if let SecretSourceText::File(path) = &secret.from
        && path.is_in_workspace()
    {
        let why = format!("`{path}` lies in the workspace, where a run reads it anyway");
        return Err(EgressSectionError { key: key(".from"), why, hint: "keep it outside, e.g. `file ~/.config/NAME`" });
    }
    Ok(())
}

/// Returns the keys by which a section gives more, each with whether it is used.
pub(crate) fn list_widening_keys(section: &EgressSection) -> [(&'static str, bool); 7] {
    [
        ("egress.allow", !section.allow.is_empty()),
        ("egress.special", !section.special.is_empty()),
        ("egress.inspect.except", !section.inspect.except.is_empty()),
        ("egress.inspect.allow", !section.inspect.allow.is_empty()),
        ("egress.inspect.upgrade", !section.inspect.upgrade.is_empty()),
        ("egress.secrets", !section.secrets.is_empty()),
        ("egress.upstream", section.upstream.is_some()),
    ]
}

/// Returns the lengths of a section's lists, by key.
pub(crate) fn list_lengths(section: &EgressSection) -> [(&'static str, usize); 9] {
    let hosts = |list: &[HostEntry]| list.iter().map(|entry| entry.patterns().len()).sum();
    [
        ("egress.allow", hosts(&section.allow)),
        ("egress.ask", hosts(&section.ask)),
        ("egress.deny", hosts(&section.deny)),
        ("egress.special", section.special.len()),
        ("egress.inspect.hosts", hosts(&section.inspect.hosts)),
        ("egress.inspect.except", hosts(&section.inspect.except)),
        ("egress.inspect.allow", section.inspect.allow.len()),
        ("egress.inspect.deny", section.inspect.deny.len()),
        ("egress.inspect.upgrade", hosts(&section.inspect.upgrade)),
    ]
}

/// Returns the part of a managed section that applies against every later layer.
pub(crate) fn extract_narrowing_part(section: &EgressSection) -> EgressSection {
    EgressSection {
        ask: section.ask.clone(),
        deny: section.deny.clone(),
        limits: section.limits.clone(),
        inspect: crate::egress_file::InspectSection {
            hosts: section.inspect.hosts.clone(),
            deny: section.inspect.deny.clone(),
            ..Default::default()
        },
        ..EgressSection::default()
    }
}

fn add_hosts(
    list: &mut Vec<SourcedValue<TargetPattern>>,
    entries: &[HostEntry],
    origin: impl Fn(usize) -> ValueOrigin,
) {
    for (i, entry) in entries.iter().enumerate() {
        for pattern in entry.patterns() {
            add_unique(list, pattern.clone(), origin(i));
        }
    }
}

impl EgressSpec {
    /// Adds a section. No later section removes an entry of `deny` or `ask`; a limit, a secret and the
    /// proxy are those of the last section that sets them.
    pub(crate) fn apply_section(&mut self, section: &EgressSection, origin: &dyn Fn(&str) -> ValueOrigin, home: &Path) {
        let item = |key: &'static str| move |i: usize| origin(&format!("{key}[{i}]"));
        add_hosts(&mut self.allow, &section.allow, item("egress.allow"));
        add_hosts(&mut self.ask, &section.ask, item("egress.ask"));
        add_hosts(&mut self.deny, &section.deny, item("egress.deny"));
        add_values(&mut self.special, section.special.iter().cloned(), item("egress.special"));
        for (limit, slot) in LIMIT_FIELDS.iter().zip(&mut self.limits) {
            if let Some(value) = (limit.written)(&section.limits) {
                *slot = Some(SourcedValue::new(value, origin(limit.key)));
            }
        }
        let inspect = &section.inspect;
        add_hosts(&mut self.inspect.hosts, &inspect.hosts, item("egress.inspect.hosts"));
        add_hosts(&mut self.inspect.except, &inspect.except, item("egress.inspect.except"));
        add_hosts(&mut self.inspect.upgrade, &inspect.upgrade, item("egress.inspect.upgrade"));
        add_values(&mut self.inspect.allow, inspect.allow.iter().cloned(), item("egress.inspect.allow"));
        add_values(&mut self.inspect.deny, inspect.deny.iter().cloned(), item("egress.inspect.deny"));
        for (name, secret) in &section.secrets {
            let secret = SecretSection {
                from: secret.from.with_home(home),
                inside: secret.inside.as_ref().map(|source| source.with_home(home)),
                ..secret.clone()
            };
            let from = origin(&format!("egress.secrets.{name}"));
            self.secrets.insert(name.clone(), SourcedValue::new(secret, from));
        }
        if let Some(upstream) = &section.upstream {
            let credentials = upstream.credentials.as_ref().map(|source| source.with_home(home));
            let upstream = UpstreamSection { credentials, ..upstream.clone() };
            self.upstream = Some(SourcedValue::new(upstream, origin("egress.upstream")));
        }
    }

    /// Returns the limits, by key.
    pub(crate) fn limits_by_key(&self) -> impl Iterator<Item = (&'static str, Option<&SourcedValue<u64>>)> {
        LIMIT_FIELDS.iter().map(|limit| limit.key).zip(self.limits.iter().map(Option::as_ref))
    }

    /// Takes the lower of the two values for each limit; an absent value is higher than any.
    pub(crate) fn lower_limits(&mut self, other: &Self) {
        for (own, other) in self.limits.iter_mut().zip(&other.limits) {
            let lower = match (&*own, other) {
                (Some(own), Some(other)) => other.value < own.value,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if lower {
                own.clone_from(other);
            }
        }
    }

    /// Returns the first key in which this part gives more than `base`, if any. In doubt, the result is
    /// "wider".
    pub(crate) fn wider_than(&self, base: &Self) -> Option<&'static str> {
        let each = |part: &[SourcedValue<TargetPattern>], holds: &dyn Fn(&TargetPattern) -> bool| {
            part.iter().all(|entry| holds(&entry.value))
        };
        let covers = |list: &[SourcedValue<TargetPattern>], part: &TargetPattern| {
            list.iter().any(|entry| entry.value.covers(part))
        };
        let lists = first_failing([
            ("egress.allow", each(&self.allow, &|own| base.allow.iter().any(|entry| entry.value.admits_all(own)))),
            (
                "egress.ask",
                each(&base.ask, &|base_entry| covers(&self.ask, base_entry) || covers(&self.deny, base_entry)),
            ),
            ("egress.deny", each(&base.deny, &|denied| covers(&self.deny, denied))),
            ("egress.special", each(&self.special, &|own| covers(&base.special, own))),
        ]);
        let is_raised = |(own, base): (Option<&SourcedValue<u64>>, Option<&SourcedValue<u64>>)| {
            base.is_some_and(|base| own.is_none_or(|own| own.value > base.value))
        };
        let limit = || {
            let mut pairs = self.limits_by_key().zip(base.limits_by_key());
            pairs.find(|((_, own), (_, base))| is_raised((*own, *base))).map(|((key, _), _)| key)
        };
        let is_known = |(name, own): (&String, &SourcedValue<SecretSection>)| {
            base.secrets.get(name).is_some_and(|secret| secret.value == own.value)
        };
        let proxy = |spec: &Self| spec.upstream.as_ref().map(|upstream| upstream.value.clone());
        let secrets_or_upstream = || {
            first_failing([
                ("egress.secrets", self.secrets.iter().all(is_known)),
                ("egress.upstream", proxy(self) == proxy(base)),
            ])
        };
        lists.or_else(limit).or_else(|| self.inspect.wider_than(&base.inspect)).or_else(secrets_or_upstream)
    }

    /// Reports every entry, with its key.
    pub(crate) fn report_entries(&self, line: &mut dyn FnMut(&str, String, &ValueOrigin)) {
        let lists = [
            ("egress.allow", &self.allow),
            ("egress.ask", &self.ask),
            ("egress.deny", &self.deny),
            ("egress.special", &self.special),
            ("egress.inspect.hosts", &self.inspect.hosts),
            ("egress.inspect.except", &self.inspect.except),
            ("egress.inspect.upgrade", &self.inspect.upgrade),
        ];
        for (key, list) in lists {
            list.iter().for_each(|entry| line(key, entry.value.to_string(), &entry.origin));
        }
        for (key, list) in [("egress.inspect.allow", &self.inspect.allow), ("egress.inspect.deny", &self.inspect.deny)]
        {
            list.iter().for_each(|entry| line(key, entry.value.to_string(), &entry.origin));
        }
        for (key, limit) in self.limits_by_key() {
            if let Some(entry) = limit {
                line(key, entry.value.to_string(), &entry.origin);
            }
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
        fn values<T: Clone>(list: &[SourcedValue<T>]) -> Vec<T> {
            list.iter().map(|entry| entry.value.clone()).collect()
        }
        let source = |source: &SecretSourceText| source.resolve_source(home, workspace);
        let mut limits = EgressLimits::default();
        for (limit, value) in LIMIT_FIELDS.iter().zip(&self.limits) {
            *(limit.slot)(&mut limits) = value.as_ref().map(|entry| entry.value);
        }
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
        EgressRules {
            allow: values(&self.allow),
            ask: values(&self.ask),
            deny: values(&self.deny),
            special: values(&self.special),
            limits,
            inspect: InspectionRules {
                hosts: values(&self.inspect.hosts),
                except: values(&self.inspect.except),
                allow: values(&self.inspect.allow),
                deny: values(&self.inspect.deny),
                upgrade: values(&self.inspect.upgrade),
            },
            secrets: self.secrets.iter().map(secret).collect(),
            upstream: self.upstream.as_ref().map(upstream),
        }
    }
}

impl InspectSpec {
    /// Compares two inspection parts. Requests that `allow` names are the only ones of their host. So one
    /// more entry gives more, and so does the removal of the last one.
    fn wider_than(&self, base: &Self) -> Option<&'static str> {
        fn contains_all<T: PartialEq>(whole: &[SourcedValue<T>], part: &[SourcedValue<T>]) -> bool {
            part.iter().all(|entry| whole.iter().any(|own| own.value == entry.value))
        }
        let same = contains_all(&self.allow, &base.allow) && contains_all(&base.allow, &self.allow);
        first_failing([
            ("egress.inspect.hosts", contains_all(&self.hosts, &base.hosts)),
            ("egress.inspect.except", contains_all(&base.except, &self.except)),
            ("egress.inspect.upgrade", contains_all(&base.upgrade, &self.upgrade)),
            ("egress.inspect.deny", contains_all(&self.deny, &base.deny)),
            ("egress.inspect.allow", same || base.allow.is_empty()),
        ])
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
