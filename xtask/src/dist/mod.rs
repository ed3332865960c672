//! `cargo xtask dist`: what a release consists of. It is a tar archive with the static binary, a
//! Debian package, a bill of materials (SBOM) and checksums. The same sources give the same bytes.
//!
//! This module must not know subcommands: the binary itself writes its manual pages and
//! completions.

mod check;
mod debian;
mod elf;
mod files;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use files::PackedFile;

const USAGE: &str = "usage: cargo xtask dist [--binary PATH] [--output DIR] [--check]";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const APPARMOR_PROFILE: &str = include_str!("debian/apparmor");
/// Each shell, and the name of its completions in the archive.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "stockade.bash"), ("zsh", "_stockade"), ("fish", "stockade.fish")];

/// Arguments of the command.
#[derive(Debug, Default)]
struct DistArgs {
    /// A binary that was built already.
    binary: Option<PathBuf>,
    /// Directory for the artifacts.
    output: Option<PathBuf>,
    /// Install the artifacts in fresh systems, and try them.
    check: bool,
}

/// Everything that the artifacts are made of.
struct ReleaseContent {
    binary: Vec<u8>,
    /// Manual pages, by their file name.
    manual: Vec<(String, Vec<u8>)>,
    /// Completions, by their file name in the archive.
    completions: Vec<(&'static str, Vec<u8>)>,
    readme: Vec<u8>,
    license: Vec<u8>,
    changelog: Vec<u8>,
    sbom: Vec<u8>,
    /// Licence texts of the libraries in the binary.
    third_party: Vec<u8>,
    /// Modification time of every file, in seconds since the epoch.
    epoch: u64,
}

/// Builds the artifacts, and checks them if asked to.
pub fn run(arguments: &[String]) -> Result<()> {
    let arguments = parse_arguments(arguments)?;
    let root = crate::workspace()?;
    let output = arguments.output.unwrap_or_else(|| root.join("target/dist"));
    let binary = match arguments.binary {
        Some(binary) => binary,
        None => build_binary(&root)?,
    };
    let content = collect_content(&root, &binary)?;
    let artifacts = write_artifacts(&content, &output)?;
    for artifact in &artifacts {
        println!("{}", artifact.display());
    }
    if arguments.check { check::try_artifacts(&output) } else { Ok(()) }
}

fn parse_arguments(arguments: &[String]) -> Result<DistArgs> {
    let mut parsed = DistArgs::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--binary" => parsed.binary = Some(rest.next().context(USAGE)?.into()),
            "--output" => parsed.output = Some(rest.next().context(USAGE)?.into()),
            "--check" => parsed.check = true,
            _ => bail!(USAGE),
        }
    }
    Ok(parsed)
}

/// Builds the release binary, and returns its path.
fn build_binary(root: &Path) -> Result<PathBuf> {
    crate::run("cargo", &["build", "--release", "--locked", "--package", "stockade-cli"], false)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join(host_target()?).join("release/stockade"))
}

/// Returns the target triple of this machine, for which the workspace is built.
fn host_target() -> Result<String> {
    let version = output_of(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` does not print the host")?.to_owned())
}

fn collect_content(root: &Path, binary: &Path) -> Result<ReleaseContent> {
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    let content = read(binary.to_owned())?;
    ensure!(
        elf::is_static(&content),
        "{} is not a static binary: unset RUSTFLAGS, which replaces the flags of .cargo/config.toml",
        binary.display()
    );
    let epoch = source_date(root)?;
    let libraries = sbom::linked_packages(root, &host_target()?, &content)?;
    Ok(ReleaseContent {
        binary: content,
        manual: render_manual(binary)?,
        completions: render_completions(binary)?,
        readme: read(root.join("README.md"))?,
        license: read(root.join("LICENSE"))?,
        changelog: read(root.join("CHANGELOG.md"))?,
        sbom: sbom::render(&libraries, epoch)?,
        third_party: sbom::collect_licenses(&libraries)?,
        epoch,
    })
}

/// Returns `SOURCE_DATE_EPOCH`, or else the date of the last commit.
fn source_date(root: &Path) -> Result<u64> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => output_of(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?,
    };
    seconds.trim().parse().context("the date is not a number of seconds: set SOURCE_DATE_EPOCH")
}

/// Formats the date of the artifacts with date(1).
fn format_date(epoch: u64, format: &str) -> Result<String> {
    let date = format!("--date=@{epoch}");
    Ok(output_of(Command::new("date").env("LC_ALL", "C").args(["--utc", &date, format]))?.trim().to_owned())
}

fn render_manual(binary: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let directory = tempfile::tempdir()?;
    output_of(Command::new(binary).args(["man", "--directory"]).arg(directory.path()))?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(directory.path())? {
        let entry = entry?;
        pages.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    pages.sort();
    ensure!(!pages.is_empty(), "`{} man` did not write a page", binary.display());
    Ok(pages)
}

fn render_completions(binary: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let render = |(shell, name)| {
        let text = output_of(Command::new(binary).args(["completions", shell]))?;
        Ok((name, text.into_bytes()))
    };
    COMPLETIONS.into_iter().map(render).collect()
}

/// Writes the artifacts and their checksums, and returns their paths.
fn write_artifacts(content: &ReleaseContent, output: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(output)?;
    let base = format!("stockade-{VERSION}-{}-linux", std::env::consts::ARCH);
    let archive = output.join(format!("{base}.tar.gz"));
    files::write_archive(&archive_files(content), &base, content.epoch, &archive)?;
    let package = output.join(format!("stockade_{VERSION}_{}.deb", debian::architecture()?));
    debian::write_package(content, &package)?;
    let sbom = output.join(format!("{base}.cdx.json"));
    fs::write(&sbom, &content.sbom)?;
    let mut artifacts = vec![archive, package, sbom];
    let names = artifacts.iter().filter_map(|artifact| artifact.file_name());
    let sums = output_of(Command::new("sha256sum").args(names).current_dir(output))?;
    artifacts.push(output.join("SHA256SUMS"));
    fs::write(output.join("SHA256SUMS"), sums)?;
    Ok(artifacts)
}

/// Returns the files of the archive.
fn archive_files(content: &ReleaseContent) -> Vec<PackedFile> {
    let mut files = vec![
        PackedFile::program("stockade", &content.binary),
        PackedFile::data("README.md", &content.readme),
        PackedFile::data("LICENSE", &content.license),
        PackedFile::data("CHANGELOG.md", &content.changelog),
        PackedFile::data("third-party-licenses", &content.third_party),
        PackedFile::data("sbom.cdx.json", &content.sbom),
        PackedFile::data("apparmor/stockade", APPARMOR_PROFILE.as_bytes()),
    ];
    files.extend(content.manual.iter().map(|(name, page)| PackedFile::data(&format!("man/man1/{name}"), page)));
    files.extend(content.completions.iter().map(|(name, text)| PackedFile::data(&format!("completions/{name}"), text)));
    files
}

/// Runs a program, and returns its output as text.
pub fn output_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name} ended with {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("the output of {name} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> ReleaseContent {
        ReleaseContent {
            binary: b"no program, but bytes".to_vec(),
            manual: vec![("stockade.1".into(), b".TH stockade 1\n".to_vec())],
            completions: COMPLETIONS.map(|(shell, name)| (name, shell.as_bytes().to_vec())).into(),
            readme: b"readme\n".to_vec(),
            license: b"license\n".to_vec(),
            changelog: b"# Changes\n".to_vec(),
            sbom: b"{}\n".to_vec(),
            third_party: b"licences\n".to_vec(),
            epoch: 1_700_000_000,
        }
    }

    #[test]
    fn two_builds_give_the_same_bytes() {
        let build = || {
            let output = tempfile::tempdir().unwrap();
            let artifacts = write_artifacts(&content(), output.path()).unwrap();
            artifacts.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>()
        };
        let first = build();
        // Another second, in case a file takes the time of its making.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(first == build(), "the artifacts differ");
        assert_eq!(first.len(), 4);
    }

    #[test]
    fn the_package_has_its_files_of_root_and_no_dependency() {
        let output = tempfile::tempdir().unwrap();
        let artifacts = write_artifacts(&content(), output.path()).unwrap();
        let read = |option| output_of(Command::new("dpkg-deb").arg(option).arg(&artifacts[1])).unwrap();
        let listed = read("--contents");
        for path in [
            "./usr/bin/stockade",
            "./etc/apparmor.d/stockade",
            "./usr/share/man/man1/stockade.1.gz",
            "./usr/share/bash-completion/completions/stockade",
            "./usr/share/zsh/vendor-completions/_stockade",
            "./usr/share/fish/vendor_completions.d/stockade.fish",
            "./usr/share/doc/stockade/copyright",
        ] {
            let line = listed.lines().find(|line| line.ends_with(path)).unwrap_or_else(|| panic!("no {path}"));
            let mode = if path.contains("bin/") { "-rwxr-xr-x root/root" } else { "-rw-r--r-- root/root" };
            assert!(line.starts_with(mode) && line.contains("2023-11-14 22:13"), "{line}");
        }
        let control = read("--field");
        assert!(control.contains(&format!("Version: {VERSION}\n")) && !control.contains("Depends"), "{control}");
    }

    #[test]
    fn the_checksums_are_those_of_the_files() {
        let output = tempfile::tempdir().unwrap();
        write_artifacts(&content(), output.path()).unwrap();
        let mut sums = Command::new("sha256sum");
        assert!(output_of(sums.args(["--check", "--strict", "SHA256SUMS"]).current_dir(output.path())).is_ok());
    }

    #[test]
    fn arguments() {
        let parse = |line: &str| parse_arguments(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let parsed = parse("--binary b --output o --check").unwrap();
        assert_eq!((parsed.binary, parsed.output, parsed.check), (Some("b".into()), Some("o".into()), true));
        assert!(parse("--binary").is_err() && parse("more").is_err());
    }
}
