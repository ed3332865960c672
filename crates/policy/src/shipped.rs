//! The built-in profiles, read from the data in `policies/`.
//!
//! Must not know configuration files. The data is compiled in, so an error here is an error of this
//! repository; the tests check its form.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;

use stockade_model::{CacheSharing, DEFAULT_PROTECTED_NAMES, PROJECT_FILES, ToolCache};

use crate::error::ConfigError;
use crate::shipped_text::{CacheEntry, ListName, ShippedFile, ShippedGroup, parse_shipped_file};
use crate::spec::{ProfileSpec, SourcedValue, ValueOrigin};
use crate::text::{ConfigPath, ProtectedName, TextError, VariableName};

const PROFILE_FILES: [(&str, &str, &str); 4] = [
    ("read-only", "read-only.toml", include_str!("../../../policies/read-only.toml")),
    ("workspace", "workspace.toml", include_str!("../../../policies/workspace.toml")),
    ("strict", "strict.toml", include_str!("../../../policies/strict.toml")),
    ("host", "host.toml", include_str!("../../../policies/host.toml")),
];
const CREDENTIALS_FILE: (&str, &str) = ("credentials.toml", include_str!("../../../policies/credentials.toml"));
const ENVIRONMENT_FILE: (&str, &str) = ("environment.toml", include_str!("../../../policies/environment.toml"));
const CACHES_FILE: (&str, &str) = ("caches.toml", include_str!("../../../policies/caches.toml"));
const CACHES_REASON: &str = "tools run without a question, and the host's caches stay as they are";

/// Returns the built-in profiles by name, with `home` substituted.
pub(crate) fn load_shipped_profiles(home: &Path) -> Result<BTreeMap<String, ProfileSpec>, ConfigError> {
    let parts = |(file, source): (&'static str, &'static str)| {
        let wrong = |why: String| ConfigError::new(Path::new(file), None, why);
        let content = parse_shipped_file(source).map_err(wrong)?;
        additions_of(&content, file, home).map(|part| (content, part)).map_err(|e| wrong(e.to_string()))
    };
    // Made once and copied, because most of a profile is the two lists.
    let (_, credentials) = parts(CREDENTIALS_FILE)?;
    let (_, environment) = parts(ENVIRONMENT_FILE)?;
    let mut profiles = BTreeMap::new();
    for (name, file, source) in PROFILE_FILES {
        let (content, own) = parts((file, source))?;
        let mut spec = empty_profile(&content);
        for list in &content.uses {
            match list {
                ListName::Caches => {
                    let origin = ValueOrigin::Shipped { file: CACHES_FILE.0, reason: CACHES_REASON };
                    spec.caches = Some(SourcedValue::new(true, origin));
                }
                ListName::Credentials => apply_additions(&mut spec, credentials.clone()),
                ListName::Environment => apply_additions(&mut spec, environment.clone()),
                ListName::ProjectFiles => spec.protect.extend(project_files()),
            }
        }
        apply_additions(&mut spec, own);
        spec.apply_limits(&content.limits, &|_| ValueOrigin::Shipped { file, reason: LIMITS_REASON });
        // Resolving a profile sorts its lists; a list that is already sorted takes no time.
        spec.hide.sort_by(|a, b| a.value.path_bytes().cmp(b.value.path_bytes()));
        spec.protect.sort_by(|a, b| a.value.cmp(&b.value));
        profiles.insert(name.to_owned(), spec);
    }
    Ok(profiles)
}

/// Returns the shipped caches of tools, in the home directory `home`.
pub(crate) fn load_shipped_caches(home: &Path) -> Vec<ToolCache> {
    // Read once. The tests check that it can be read.
    static ENTRIES: LazyLock<Vec<CacheEntry>> =
        LazyLock::new(|| parse_shipped_file(CACHES_FILE.1).map(|file| file.cache).unwrap_or_default());
    ENTRIES.iter().filter_map(|entry| build_cache(entry, home)).collect()
}

fn build_cache(entry: &CacheEntry, home: &Path) -> Option<ToolCache> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let set = entry.set.iter().map(|text| text.split_once('=').map(|(name, value)| (name.into(), value.into())));
    Some(ToolCache {
        tool: entry.tool.to_owned(),
        directory: entry.directory.parse::<ConfigPath>().ok()?.resolve_path(home, Path::new("/")).into(),
        data: texts(&entry.data),
        sharing: entry.sharing.unwrap_or(CacheSharing::Private),
        moved_by: texts(&entry.moved_by),
        set: set.collect::<Option<_>>()?,
    })
}

/// Returns the shipped lists of credentials, each with its reason; read once.
pub(crate) fn credential_groups() -> &'static [(Vec<&'static str>, &'static str)] {
    static GROUPS: LazyLock<Vec<(Vec<&'static str>, &'static str)>> = LazyLock::new(|| {
        // The tests check that it can be read.
        let groups = parse_shipped_file(CREDENTIALS_FILE.1).map(|file| file.hide).unwrap_or_default();
        groups.into_iter().map(|group| (group.values, group.reason)).collect()
    });
    &GROUPS
}

const LIMITS_REASON: &str = "a limit that ordinary work does not reach";
const PROJECT_FILES_REASON: &str = "runs when a user builds, tests or installs the project";
const PROTECT_REASON: &str = "carries code or configuration that the host later trusts";

fn empty_profile(content: &ShippedFile) -> ProfileSpec {
    let origin = || ValueOrigin::Shipped { file: "the list of protected names", reason: PROTECT_REASON };
    let names: &[&str] = if content.sandboxed { &DEFAULT_PROTECTED_NAMES } else { &[] };
    ProfileSpec {
        summary: content.summary.to_owned(),
        sandboxed: content.sandboxed,
        network: content.network,
        protect: names.iter().map(|name| SourcedValue::new(ProtectedName((*name).to_owned()), origin())).collect(),
        ..ProfileSpec::default()
    }
}

/// Returns the names of project files that run code later.
fn project_files() -> impl Iterator<Item = SourcedValue<ProtectedName>> {
    let origin =
        || ValueOrigin::Shipped { file: "the list of files that run code later", reason: PROJECT_FILES_REASON };
    PROJECT_FILES
        .iter()
        .map(move |(name, _)| SourcedValue::new(ProtectedName(name.trim_end_matches('/').to_owned()), origin()))
}

/// Returns the additions of one file to a profile.
fn additions_of(content: &ShippedFile, file: &'static str, home: &Path) -> Result<ProfileSpec, TextError> {
    let paths = |groups: &[ShippedGroup]| {
        let mut entries = parse_values::<ConfigPath>(groups, file)?;
        for entry in &mut entries {
            if let ConfigPath::Home(_) = entry.value {
                entry.value = entry.value.with_home(home);
            }
        }
        Ok(entries)
    };
    let mut hide = paths(&content.hide)?;
    // A list that is sorted here is sorted in every copy.
    hide.sort_by(|a, b| a.value.path_bytes().cmp(b.value.path_bytes()));
    let set = content.set.iter().map(|entry| {
        let origin = ValueOrigin::Shipped { file, reason: entry.reason };
        Ok((entry.name.parse::<VariableName>()?.0, SourcedValue::new(entry.value.to_owned(), origin)))
    });
    Ok(ProfileSpec {
        write: paths(&content.write)?,
        hide,
        pass: parse_values(&content.pass, file)?,
        drop: parse_values(&content.drop, file)?,
        set: set.collect::<Result<_, TextError>>()?,
        ..ProfileSpec::default()
    })
}

fn parse_values<T: FromStr<Err = TextError>>(
    groups: &[ShippedGroup],
    file: &'static str,
) -> Result<Vec<SourcedValue<T>>, TextError> {
    let mut all = Vec::with_capacity(groups.iter().map(|group| group.values.len()).sum());
    for group in groups {
        for text in &group.values {
            all.push(SourcedValue::new(text.parse()?, ValueOrigin::Shipped { file, reason: group.reason }));
        }
    }
    Ok(all)
}

/// Adds a part to a profile. Shipped lists do not contradict each other (tested), so plain additions
/// suffice; the rules of `apply` are for configuration files.
fn apply_additions(spec: &mut ProfileSpec, part: ProfileSpec) {
    fn append_list<T>(list: &mut Vec<T>, more: Vec<T>) {
        if list.is_empty() { *list = more } else { list.extend(more) }
    }
    append_list(&mut spec.write, part.write);
    append_list(&mut spec.hide, part.hide);
    append_list(&mut spec.pass, part.pass);
    append_list(&mut spec.drop, part.drop);
    spec.set.extend(part.set);
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_model::text_matches;

    /// The same types, for a complete TOML parser. They are compared as text.
    mod whole {
        use serde::{Deserialize, Deserializer};
        use stockade_model::{CacheSharing, Limits, NetworkAccess};

        use crate::file::LimitsSection;

        #[derive(Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct ShippedFile {
            summary: String,
            sandboxed: bool,
            network: NetworkAccess,
            uses: Vec<ListName>,
            write: Vec<ShippedGroup>,
            hide: Vec<ShippedGroup>,
            pass: Vec<ShippedGroup>,
            drop: Vec<ShippedGroup>,
            set: Vec<SetEntry>,
            cache: Vec<CacheEntry>,
            #[serde(deserialize_with = "limits_of_section")]
            limits: Limits,
        }

        fn limits_of_section<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
            LimitsSection::deserialize(deserializer).map(|section| section.to_limits())
        }

        #[derive(Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct CacheEntry {
            tool: String,
            directory: String,
            data: Vec<String>,
            sharing: Option<CacheSharing>,
            moved_by: Vec<String>,
            set: Vec<String>,
            reason: String,
        }

        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        enum ListName {
            Caches,
            Credentials,
            Environment,
            ProjectFiles,
        }

        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "read through Debug")]
        struct ShippedGroup {
            #[serde(alias = "paths", alias = "names")]
            values: Vec<String>,
            reason: String,
        }

        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "read through Debug")]
        struct SetEntry {
            name: String,
            value: String,
            reason: String,
        }
    }

    #[test]
    fn shipped_data_is_well_formed() {
        let profiles = load_shipped_profiles(Path::new("/home/u")).unwrap();
        assert_eq!(profiles.keys().collect::<Vec<_>>(), ["host", "read-only", "strict", "workspace"]);
        for (name, spec) in &profiles {
            let mut hidden: Vec<_> = spec.hide.iter().map(|entry| &entry.value).collect();
            let count = hidden.len();
            hidden.sort();
            hidden.dedup();
            assert_eq!(hidden.len(), count, "{name}: a path is hidden twice");
            for pass in &spec.pass {
                for drop in &spec.drop {
                    // An exact name outweighs a pattern: this is intended.
                    let is_intended = drop.value.as_str().contains('*') && !pass.value.as_str().contains('*');
                    let clash = !is_intended && text_matches(drop.value.as_str(), pass.value.as_str());
                    assert!(!clash, "{name}: `{}` passes and `{}` drops it", pass.value.as_str(), drop.value.as_str());
                }
            }
        }
    }

    #[test]
    fn every_entry_has_a_reason() {
        for (name, source) in
            PROFILE_FILES.map(|p| (p.1, p.2)).into_iter().chain([CREDENTIALS_FILE, ENVIRONMENT_FILE, CACHES_FILE])
        {
            let content = parse_shipped_file(source).unwrap();
            let groups = content.write.iter().chain(&content.hide).chain(&content.pass).chain(&content.drop);
            let reasons = groups.map(|g| g.reason).chain(content.set.iter().map(|s| s.reason));
            let reasons = reasons.chain(content.cache.iter().map(|c| c.reason));
            assert!(reasons.into_iter().all(|r| r.len() > 5), "{name}");
        }
    }

    /// The reader of the shipped files finds the same content as a complete TOML parser.
    #[test]
    fn shipped_files_have_the_meaning_of_toml() {
        for (name, source) in
            PROFILE_FILES.map(|p| (p.1, p.2)).into_iter().chain([CREDENTIALS_FILE, ENVIRONMENT_FILE, CACHES_FILE])
        {
            let whole: whole::ShippedFile = toml::from_str(source).unwrap();
            assert_eq!(format!("{:?}", parse_shipped_file(source).unwrap()), format!("{whole:?}"), "{name}");
        }
    }

    #[test]
    fn every_cache_is_a_plain_directory_of_the_home_that_hides_nothing() {
        let home = Path::new("/home/u");
        let all = load_shipped_caches(home);
        assert_eq!(all.len(), parse_shipped_file(CACHES_FILE.1).unwrap().cache.len());
        let profiles = load_shipped_profiles(home).unwrap();
        for (i, cache) in all.iter().enumerate() {
            let tool = &cache.tool;
            assert!(!tool.is_empty() && tool.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{tool}");
            assert!(all[..i].iter().all(|other| other.tool != *tool), "{tool} is there twice");
            let directory = cache.directory.as_path();
            assert!(directory.starts_with(home) && directory != home, "{tool}");
            assert!(cache.sharing == CacheSharing::Merged || !cache.set.is_empty(), "{tool}: nothing leads to it");
            assert!(cache.data.iter().all(|name| !name.trim_end_matches('/').contains('/')), "{tool}");
            for hidden in &profiles["workspace"].hide {
                let hidden = hidden.value.resolve_path(home, home);
                let written = cache.data.iter().map(|name| directory.join(name)).chain([directory.to_owned()]);
                let written: Vec<_> =
                    if cache.data.is_empty() { written.collect() } else { written.take(cache.data.len()).collect() };
                assert!(!written.iter().any(|w| hidden.starts_with(w)), "{tool} holds {}", hidden.display());
            }
        }
    }

    #[test]
    fn read_only_is_narrower_than_workspace_than_host() {
        let profiles = load_shipped_profiles(Path::new("/home/u")).unwrap();
        assert_eq!(profiles["read-only"].wider_than(&profiles["workspace"]), None);
        assert_eq!(profiles["workspace"].wider_than(&profiles["read-only"]), Some("write"));
        assert_eq!(profiles["host"].wider_than(&profiles["workspace"]), Some("sandboxed"));
        assert_eq!(profiles["strict"].wider_than(&profiles["workspace"]), None);
        assert_eq!(profiles["workspace"].wider_than(&profiles["strict"]), Some("protect"));
    }
}
