//! The built-in profiles, read from the data in `policies/`.
//!
//! Must not know configuration files. The data is compiled in, so an error here
//! is one of this repository's own; the tests hold it well formed.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use stockade_model::{DEFAULT_PROTECTED_NAMES, Network};

use crate::error::ConfigError;
use crate::file::LimitsSection;
use crate::parse::parse_content;
use crate::spec::{LimitsSpec, Origin, ProfileSpec, Sourced};
use crate::text::{ConfigPath, DropPattern, PassPattern, ProtectedName, VariableName};

const PROFILES: [(&str, &str, &str); 3] = [
    ("read-only", "read-only.toml", include_str!("../../../policies/read-only.toml")),
    ("workspace", "workspace.toml", include_str!("../../../policies/workspace.toml")),
    ("host", "host.toml", include_str!("../../../policies/host.toml")),
];
const CREDENTIALS: (&str, &str) = ("credentials.toml", include_str!("../../../policies/credentials.toml"));
const ENVIRONMENT: (&str, &str) = ("environment.toml", include_str!("../../../policies/environment.toml"));

/// One file of `policies/`: a profile, or a list that profiles use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ShippedFile {
    summary: String,
    sandboxed: bool,
    network: Network,
    uses: Vec<ListName>,
    write: Vec<PathGroup>,
    hide: Vec<PathGroup>,
    pass: Vec<NameGroup<PassPattern>>,
    drop: Vec<NameGroup<DropPattern>>,
    set: Vec<SetEntry>,
    limits: LimitsSection,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ListName {
    Credentials,
    Environment,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathGroup {
    paths: Vec<ConfigPath>,
    reason: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameGroup<T> {
    names: Vec<T>,
    reason: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetEntry {
    name: VariableName,
    value: String,
    reason: String,
}

/// The built-in profiles by name, with `home` put in.
pub(crate) fn profiles(home: &Path) -> Result<BTreeMap<String, ProfileSpec>, ConfigError> {
    let read = |file: &str, source| parse_content::<ShippedFile>(Path::new(file), source);
    let credentials = read(CREDENTIALS.0, CREDENTIALS.1)?;
    let environment = read(ENVIRONMENT.0, ENVIRONMENT.1)?;
    let mut profiles = BTreeMap::new();
    for (name, file, source) in PROFILES {
        let content = read(file, source)?;
        let mut spec = empty(&content);
        for list in &content.uses {
            match list {
                ListName::Credentials => add(&mut spec, &credentials, CREDENTIALS.0, home),
                ListName::Environment => add(&mut spec, &environment, ENVIRONMENT.0, home),
            }
        }
        add(&mut spec, &content, file, home);
        // Resolving sorts; what is sorted already costs it nothing.
        spec.hide.sort_by(|a, b| a.value.bytes().cmp(b.value.bytes()));
        spec.protect.sort_by(|a, b| a.value.cmp(&b.value));
        profiles.insert(name.to_owned(), spec);
    }
    Ok(profiles)
}

fn empty(content: &ShippedFile) -> ProfileSpec {
    let reason = "carries code or configuration that the host later trusts";
    let origin = || Origin::Shipped { file: "the list of protected names", reason: reason.to_owned() };
    let names: &[&str] = if content.sandboxed { DEFAULT_PROTECTED_NAMES } else { &[] };
    ProfileSpec {
        lineage: Vec::new(),
        summary: content.summary.clone(),
        sandboxed: content.sandboxed,
        network: content.network,
        write: Vec::new(),
        hide: Vec::new(),
        reveal: Vec::new(),
        protect: names.iter().map(|name| Sourced::new(ProtectedName((*name).to_owned()), origin())).collect(),
        sockets: Vec::new(),
        pass: Vec::new(),
        drop: Vec::new(),
        set: BTreeMap::new(),
        limits: LimitsSpec::default(),
    }
}

fn add(spec: &mut ProfileSpec, content: &ShippedFile, file: &'static str, home: &Path) {
    let origin = |reason: &str| Origin::Shipped { file, reason: reason.to_owned() };
    for group in &content.write {
        let entry = |path: &ConfigPath| Sourced::new(path.with_home(home), origin(&group.reason));
        spec.write.extend(group.paths.iter().map(entry));
    }
    for group in &content.hide {
        let entry = |path: &ConfigPath| Sourced::new(path.with_home(home), origin(&group.reason));
        spec.hide.extend(group.paths.iter().map(entry));
    }
    // Shipped lists do not contradict each other (tested), so plain additions
    // do; the rules of `apply` are for people's files.
    for group in &content.pass {
        spec.pass.extend(group.names.iter().map(|name| Sourced::new(name.clone(), origin(&group.reason))));
    }
    for group in &content.drop {
        spec.drop.extend(group.names.iter().map(|name| Sourced::new(name.clone(), origin(&group.reason))));
    }
    for entry in &content.set {
        spec.set.insert(entry.name.0.clone(), Sourced::new(entry.value.clone(), origin(&entry.reason)));
    }
    spec.limits.apply(&content.limits, &|_| origin("a bound that ordinary work does not meet"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::glob_matches;

    #[test]
    fn shipped_data_is_well_formed() {
        let profiles = profiles(Path::new("/home/u")).unwrap();
        assert_eq!(profiles.keys().collect::<Vec<_>>(), ["host", "read-only", "workspace"]);
        for (name, spec) in &profiles {
            let mut hidden: Vec<_> = spec.hide.iter().map(|entry| &entry.value).collect();
            let count = hidden.len();
            hidden.sort();
            hidden.dedup();
            assert_eq!(hidden.len(), count, "{name}: a path is hidden twice");
            for pass in &spec.pass {
                for drop in &spec.drop {
                    let clash = glob_matches(drop.value.as_str(), pass.value.as_str());
                    assert!(!clash, "{name}: `{}` passes and `{}` drops it", pass.value.as_str(), drop.value.as_str());
                }
            }
        }
    }

    #[test]
    fn every_entry_has_a_reason() {
        for (name, source) in PROFILES.map(|p| (p.1, p.2)).into_iter().chain([CREDENTIALS, ENVIRONMENT]) {
            let content = parse_content::<ShippedFile>(Path::new(name), source).unwrap();
            let paths = content.write.iter().chain(&content.hide).map(|g| &g.reason);
            let names = content.pass.iter().map(|g| &g.reason).chain(content.drop.iter().map(|g| &g.reason));
            assert!(paths.chain(names).chain(content.set.iter().map(|s| &s.reason)).all(|r| r.len() > 5), "{name}");
        }
    }

    #[test]
    fn read_only_is_narrower_than_workspace_than_host() {
        let profiles = profiles(Path::new("/home/u")).unwrap();
        assert_eq!(profiles["read-only"].wider_than(&profiles["workspace"]), None);
        assert_eq!(profiles["workspace"].wider_than(&profiles["read-only"]), Some("write"));
        assert_eq!(profiles["host"].wider_than(&profiles["workspace"]), Some("sandboxed"));
    }
}
