//! The bill of materials of the binary, as CycloneDX 1.5: the packages that are linked into it,
//! with their licences and checksums, and the licence texts that go with them.
//!
//! `cargo tree` decides which packages these are: `cargo metadata` unites the features of the whole
//! workspace, tests included, and so names packages that the binary does not contain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{VERSION, format_date, output_of};

/// Beginnings of the names of licence files.
const LICENSE_FILE_PREFIXES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
/// The package of the binary.
const ROOT_PACKAGE: &str = "stockade-cli";

/// A package in the binary.
pub struct LinkedPackage {
    name: String,
    version: String,
    /// Licence as an SPDX expression.
    license: Option<String>,
    repository: Option<String>,
    /// SHA-256 of its archive in the registry; none for a package of this workspace.
    checksum: Option<String>,
    /// Directory of its sources; none for what the compiler brings.
    directory: Option<PathBuf>,
    /// Names and versions of the packages that it uses.
    uses: BTreeSet<PackageKey>,
}

/// Name and version.
type PackageKey = (String, String);

/// The linked packages, each with the linked packages that it uses.
type PackageUses = BTreeMap<PackageKey, BTreeSet<PackageKey>>;

/// Parts of the output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

/// Parts of `Cargo.lock`.
#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Returns the packages that are linked into the binary, sorted by name, and the libraries that the
/// tool chain links, which `binary` names itself.
pub fn linked_packages(root: &Path, target: &str, binary: &[u8]) -> Result<Vec<LinkedPackage>> {
    let mut uses = linked_uses(root, target)?;
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--locked", "--format-version=1", "--filter-platform", target]).current_dir(root);
    let metadata: Metadata = serde_json::from_str(&output_of(&mut metadata)?)?;
    let lock: LockFile = toml::from_str(&fs::read_to_string(root.join("Cargo.lock"))?)?;
    let mut checksums: BTreeMap<PackageKey, Option<String>> =
        lock.package.into_iter().map(|package| ((package.name, package.version), package.checksum)).collect();
    let linked = metadata.packages.into_iter().filter_map(|package| {
        let key = (package.name, package.version);
        Some(LinkedPackage {
            uses: uses.remove(&key)?,
            checksum: checksums.remove(&key).flatten(),
            // The older form of an expression.
            license: package.license.map(|license| license.replace('/', " OR ")),
            repository: package.repository,
            directory: package.manifest_path.parent().map(Path::to_owned),
            name: key.0,
            version: key.1,
        })
    });
    let mut packages: Vec<LinkedPackage> = linked.collect();
    packages.extend(toolchain_libraries(binary)?);
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(packages)
}

/// Returns the packages that the compiler links for this target.
fn linked_uses(root: &Path, target: &str) -> Result<PackageUses> {
    let mut tree = Command::new("cargo");
    tree.args(["tree", "--locked", "--package", ROOT_PACKAGE, "--target", target]);
    tree.args(["--edges=normal,no-proc-macro", "--prefix=depth", "--format= {p}"]).current_dir(root);
    let mut uses = PackageUses::new();
    // The packages from the root to the last line. A package without its own uses was listed before.
    let mut path: Vec<PackageKey> = Vec::new();
    for line in output_of(&mut tree)?.lines().filter(|line| !line.is_empty()) {
        let parsed = parse_tree_line(line);
        let (depth, key) = parsed.with_context(|| format!("`cargo tree` printed an unknown line: {line}"))?;
        path.truncate(depth);
        if let Some(user) = path.last() {
            uses.entry(user.clone()).or_default().insert(key.clone());
        }
        uses.entry(key.clone()).or_default();
        path.push(key);
    }
    Ok(uses)
}

/// Parses `DEPTH NAME vVERSION`, which may be followed by a source.
fn parse_tree_line(line: &str) -> Option<(usize, PackageKey)> {
    let mut words = line.split(' ');
    let (depth, name, version) = (words.next()?, words.next()?, words.next()?);
    Some((depth.parse().ok()?, (name.to_owned(), version.strip_prefix('v')?.to_owned())))
}

/// Returns the standard library of Rust and the C library, in the versions that the binary names.
fn toolchain_libraries(binary: &[u8]) -> Result<Vec<LinkedPackage>> {
    let library = |name: &str, license: &str, repository: &str, (before, after)| {
        let version =
            text_between(binary, before, after).with_context(|| format!("the binary does not name {name}"))?;
        anyhow::Ok(LinkedPackage {
            name: name.to_owned(),
            version,
            license: Some(license.to_owned()),
            repository: Some(repository.to_owned()),
            checksum: None,
            directory: None,
            uses: BTreeSet::new(),
        })
    };
    Ok(vec![
        library(
            "glibc",
            "LGPL-2.1-or-later",
            "https://sourceware.org/git/glibc.git",
            ("GNU C Library (", " stable release"),
        )?,
        library("rust-std", "MIT OR Apache-2.0", "https://github.com/rust-lang/rust", ("rustc version ", " ("))?,
    ])
}

/// Returns the word before `after`, in the first short text between `before` and `after`.
fn text_between(binary: &[u8], before: &str, after: &str) -> Option<String> {
    /// Longest version with its vendor.
    const MAX_TEXT_BYTES: usize = 80;
    let found = binary.windows(before.len()).position(|bytes| bytes == before.as_bytes())?;
    let rest = &binary[found + before.len()..];
    let text = String::from_utf8_lossy(&rest[..rest.len().min(MAX_TEXT_BYTES)]);
    let (text, _) = text.split_once(after)?;
    Some(text.trim_end_matches(')').rsplit(' ').next()?.to_owned())
}

/// Renders the bill of materials.
pub fn render(packages: &[LinkedPackage], epoch: u64) -> Result<Vec<u8>> {
    let (root, rest): (Vec<_>, Vec<_>) = packages.iter().partition(|package| package.name == ROOT_PACKAGE);
    let root = root.first().context("the package of the binary is missing")?;
    let mut application = component(root, "application");
    application["name"] = json!("stockade");
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": format_date(epoch, "+%Y-%m-%dT%H:%M:%SZ")?,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": VERSION }] },
            "component": application,
        },
        "components": rest.iter().map(|package| component(package, "library")).collect::<Vec<_>>(),
        "dependencies": packages.iter().map(dependencies).collect::<Vec<_>>(),
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

/// Returns the address of a package (https://github.com/package-url/purl-spec).
fn package_url(name: &str, version: &str) -> String {
    let kind = if matches!(name, "glibc" | "rust-std") { "generic" } else { "cargo" };
    format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"))
}

fn component(package: &LinkedPackage, kind: &str) -> Value {
    let url = package_url(&package.name, &package.version);
    let mut value = json!({
        "type": kind,
        "bom-ref": url,
        "name": package.name,
        "version": package.version,
        "purl": url,
    });
    if let Some(license) = &package.license {
        value["licenses"] = json!([{ "expression": license }]);
    }
    if let Some(checksum) = &package.checksum {
        value["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &package.repository {
        value["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    value
}

fn dependencies(package: &LinkedPackage) -> Value {
    let used: Vec<_> = package.uses.iter().map(|(name, version)| package_url(name, version)).collect();
    json!({ "ref": package_url(&package.name, &package.version), "dependsOn": used })
}

/// Returns the licence texts of all packages. A text that many share is there once.
pub fn collect_licenses(packages: &[LinkedPackage]) -> Result<Vec<u8>> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        for text in license_files(package)? {
            texts.entry(text).or_default().insert(format!("{} {}", package.name, package.version));
        }
    }
    let mut sections: Vec<String> = texts
        .into_iter()
        .map(|(text, names)| format!("{}\n\n{text}\n", names.into_iter().collect::<Vec<_>>().join(", ")))
        .collect();
    sections.sort();
    Ok(sections.join(&format!("\n{}\n\n", "-".repeat(80))).into_bytes())
}

fn license_files(package: &LinkedPackage) -> Result<Vec<String>> {
    // Those of this workspace have the licence that the artifacts hold beside this text.
    let Some(directory) = package.directory.as_ref().filter(|_| package.checksum.is_some()) else {
        return Ok(Vec::new());
    };
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if LICENSE_FILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && entry.path().is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).trim_end().to_owned());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the binary of this test names itself, and two versions for where it does not.
    const VERSIONS: &[u8] =
        b"\0rustc version 1.95.0 (5980)\0GNU C Library (Debian GLIBC 2.36-9) stable release version";

    fn packages() -> Vec<LinkedPackage> {
        let target = super::super::host_target().unwrap();
        linked_packages(&crate::workspace().unwrap(), &target, VERSIONS).unwrap()
    }

    #[test]
    fn every_linked_package_has_a_licence_and_a_checksum() {
        let packages = packages();
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        for name in ["clap", "glibc", "rust-std", "rustls", "stockade-native"] {
            assert!(names.contains(&name), "{name}");
        }
        for name in ["insta", "proptest", "ring", "serde_derive", "cc"] {
            assert!(!names.contains(&name), "{name} is not linked");
        }
        for package in packages {
            let ours = package.name.starts_with("stockade-");
            let of_toolchain = matches!(package.name.as_str(), "glibc" | "rust-std");
            assert!(package.license.is_some(), "{}", package.name);
            assert_eq!(package.checksum.is_none(), ours || of_toolchain, "{}", package.name);
        }
    }

    #[test]
    fn the_document_is_complete_and_the_same_each_time() {
        let packages = packages();
        let text = render(&packages, 1_700_000_000).unwrap();
        assert!(text == render(&self::packages(), 1_700_000_000).unwrap());
        let document: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(document["metadata"]["component"]["name"], "stockade");
        let components = document["components"].as_array().unwrap();
        assert_eq!(components.len() + 1, packages.len());
        let known: BTreeSet<&str> = components.iter().filter_map(|c| c["bom-ref"].as_str()).collect();
        for dependency in document["dependencies"].as_array().unwrap() {
            for used in dependency["dependsOn"].as_array().unwrap() {
                assert!(known.contains(used.as_str().unwrap()), "{used}");
            }
        }
    }

    #[test]
    fn versions_of_the_tool_chain_come_from_the_binary() {
        let found = |before, after| text_between(VERSIONS, before, after);
        assert_eq!(found("rustc version ", " (").as_deref(), Some("1.95.0"));
        assert_eq!(found("GNU C Library (", " stable release").as_deref(), Some("2.36-9"));
        assert_eq!(found("nothing", " ("), None);
    }

    #[test]
    fn licence_texts_name_their_packages() {
        let text = String::from_utf8(collect_licenses(&packages()).unwrap()).unwrap();
        assert!(text.contains("Permission is hereby granted") && text.contains("rustls "));
    }
}
