//! The Debian package: its control files and places, packed by dpkg-deb(1). Its scripts are in the
//! directory `debian`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::files::{self, PackedFile, compress};
use super::{APPARMOR_PROFILE, ReleaseContent, VERSION, format_date, output_of};

const CONTROL: &str = include_str!("debian/control");
const COPYRIGHT: &str = include_str!("debian/copyright");
const CHANGELOG: &str = include_str!("debian/changelog");
const TRIGGERS: &str = include_str!("debian/triggers");
/// Scripts that dpkg(1) runs.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("debian/postinst")),
    ("prerm", include_str!("debian/prerm")),
    ("postrm", include_str!("debian/postrm")),
];
const PROFILE_PATH: &str = "etc/apparmor.d/stockade";

/// Returns Debian's name of the architecture of this machine.
pub fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("there is no Debian package for {other}"),
    }
}

/// Writes the package.
pub fn write_package(content: &ReleaseContent, package: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let tree = directory.path().join("tree");
    let installed = installed_files(content)?;
    files::write_tree(&installed, &tree)?;
    files::write_tree(&control_files(&installed, &tree)?, &tree.join("DEBIAN"))?;
    files::normalize_tree(&tree, content.epoch)?;
    let mut build = Command::new("dpkg-deb");
    // The number of threads would change how the bytes are compressed.
    build.env("SOURCE_DATE_EPOCH", content.epoch.to_string()).env("DPKG_DEB_THREADS_MAX", "1");
    output_of(build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree).arg(package))?;
    Ok(())
}

/// Returns the files that the package installs.
fn installed_files(content: &ReleaseContent) -> Result<Vec<PackedFile>> {
    let date = format_date(content.epoch, "--rfc-email")?;
    let changelog = CHANGELOG.replace("@VERSION@", VERSION).replace("@DATE@", &date);
    let document = |name: &str, bytes: &[u8]| PackedFile::data(&format!("usr/share/doc/stockade/{name}"), bytes);
    let mut files = vec![
        PackedFile::program("usr/bin/stockade", &content.binary),
        PackedFile::data(PROFILE_PATH, APPARMOR_PROFILE.as_bytes()),
        document("copyright", COPYRIGHT.as_bytes()),
        document("changelog.gz", &compress(changelog.as_bytes())?),
        document("NEWS.gz", &compress(&content.changelog)?),
        document("README.md", &content.readme),
        document("sbom.cdx.json", &content.sbom),
        document("third-party-licenses.gz", &compress(&content.third_party)?),
    ];
    for (name, page) in &content.manual {
        files.push(PackedFile::data(&format!("usr/share/man/man1/{name}.gz"), &compress(page)?));
    }
    files.extend(content.completions.iter().map(|(name, text)| PackedFile::data(&completions_path(name), text)));
    Ok(files)
}

/// Returns where the distribution's shell finds its completions.
fn completions_path(name: &str) -> String {
    match name {
        "_stockade" => "usr/share/zsh/vendor-completions/_stockade".to_owned(),
        "stockade.fish" => "usr/share/fish/vendor_completions.d/stockade.fish".to_owned(),
        _ => "usr/share/bash-completion/completions/stockade".to_owned(),
    }
}

/// Returns the control files for the files of a tree.
fn control_files(installed: &[PackedFile], tree: &Path) -> Result<Vec<PackedFile>> {
    let control = CONTROL
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", architecture()?)
        .replace("@INSTALLED_SIZE@", &installed_size_kib(installed).to_string());
    let mut files = vec![
        PackedFile::data("control", control.as_bytes()),
        PackedFile::data("conffiles", format!("/{PROFILE_PATH}\n").as_bytes()),
        PackedFile::data("triggers", TRIGGERS.as_bytes()),
        PackedFile::data("md5sums", md5sums(installed, tree)?.as_bytes()),
    ];
    files.extend(SCRIPTS.map(|(name, text)| PackedFile::program(name, text.as_bytes())));
    Ok(files)
}

/// Returns the size as deb-substvars(5) counts it: each file in started KiB.
fn installed_size_kib(installed: &[PackedFile]) -> usize {
    installed.iter().map(|file| file.content.len().div_ceil(1024)).sum()
}

/// Returns the sums that dpkg(1) verifies. Those of configuration files are its own.
fn md5sums(installed: &[PackedFile], tree: &Path) -> Result<String> {
    let mut paths: Vec<&str> =
        installed.iter().map(|file| file.path.as_str()).filter(|path| *path != PROFILE_PATH).collect();
    paths.sort_unstable();
    output_of(Command::new("md5sum").args(paths).current_dir(tree))
}
