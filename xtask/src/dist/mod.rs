//! `cargo xtask dist`: what a release consists of. It is a tar archive with the static binary, a
//! Debian package, a bill of materials (SBOM) and checksums. The same sources give the same bytes.
//!
//! This module must not know subcommands: the binary itself writes its manual pages and
//! completions.

mod elf;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

const USAGE: &str = "usage: cargo xtask dist [--binary PATH] [--output DIR] [--check]";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Control files and scripts of the Debian package, in the workspace.
const CONTROL_FILES: &str = "xtask/src/dist/debian";
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
    /// Files of the archive: path and content.
    files: Vec<(String, Vec<u8>)>,
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
    if arguments.check { try_artifacts(&output) } else { Ok(()) }
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
    let mut files = vec![
        ("stockade".to_owned(), content),
        ("third-party-licenses".to_owned(), sbom::collect_licenses(&libraries)?),
        ("sbom.cdx.json".to_owned(), sbom::render(&libraries, epoch)?),
        ("apparmor/stockade".to_owned(), read(root.join(CONTROL_FILES).join("apparmor"))?),
    ];
    for name in ["README.md", "LICENSE", "CHANGELOG.md"] {
        files.push((name.to_owned(), read(root.join(name))?));
    }
    files.extend(render_manual(binary)?);
    for (shell, name) in COMPLETIONS {
        let text = output_of(Command::new(binary).args(["completions", shell]))?;
        files.push((format!("completions/{name}"), text.into_bytes()));
    }
    Ok(ReleaseContent { files, epoch })
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
        pages.push((format!("man/man1/{}", entry.file_name().to_string_lossy()), fs::read(entry.path())?));
    }
    ensure!(!pages.is_empty(), "`{} man` did not write a page", binary.display());
    Ok(pages)
}

/// Writes the artifacts and their checksums, and returns their paths.
fn write_artifacts(content: &ReleaseContent, output: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(output)?;
    let directory = tempfile::tempdir()?;
    let tree = directory.path().join(format!("stockade-{VERSION}-{}-linux", std::env::consts::ARCH));
    for (name, bytes) in &content.files {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().context("a file has a parent")?)?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut script = Command::new("sh");
    script.args(["-euc", include_str!("pack.sh"), "pack"]).arg(tree).arg(crate::workspace()?.join(CONTROL_FILES));
    let paths = output_of(script.arg(output).args([VERSION, &content.epoch.to_string()]))?;
    Ok(paths.lines().map(PathBuf::from).collect())
}

/// Installs the artifacts in fresh minimal Debian systems, runs the first command there, and compares
/// the files of the system before and after. A script does the work, because it consists of programs
/// of the system.
///
/// # Errors
/// An error if a trial fails, or if this machine cannot make a system to try them in.
fn try_artifacts(output: &Path) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "--check makes system trees, and needs root for that");
    // All mounts of the trials end with this namespace.
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation=private", "sh", "-euc", include_str!("check.sh"), "check"]);
    script.arg(output).args([crate::image::SUITE, include_str!("check_inside.sh")]);
    let status = script.status().context("cannot start unshare")?;
    ensure!(status.success(), "a test of the artifacts failed: {status}");
    Ok(())
}

/// Runs a program, and returns its output as text.
fn output_of(command: &mut Command) -> Result<String> {
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
        let files = [
            ("stockade", "no program, but bytes"),
            ("third-party-licenses", "licences\n"),
            ("sbom.cdx.json", "{}\n"),
            ("apparmor/stockade", include_str!("debian/apparmor")),
            ("README.md", "readme\n"),
            ("LICENSE", "license\n"),
            ("CHANGELOG.md", "# Changes\n"),
            ("man/man1/stockade.1", ".TH stockade 1\n"),
        ];
        let completions = COMPLETIONS.map(|(shell, name)| (format!("completions/{name}"), shell.into()));
        let files = files.map(|(name, text)| (name.to_owned(), text.into())).into_iter().chain(completions);
        ReleaseContent { files: files.collect(), epoch: 1_700_000_000 }
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
