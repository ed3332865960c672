//! What machines are made from, through the system's package manager: programs
//! of this machine's own release, kernels of the releases that have them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::step;

/// A program, and the package that brings it.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("debootstrap", "debootstrap"),
    ("cpio", "cpio"),
    ("busybox", "busybox-static"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
];

/// Where programs of the administrator are, which a user's PATH lacks.
const DIRECTORIES: &[&str] = &["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Signs every release of the distribution.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs what is missing.
pub fn need_programs() -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the machines support x86-64 only");
    ensure!(rustix::process::geteuid().is_root(), "making a system tree needs root");
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !exists(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    step("apt-get", &["update", "-q"], Path::new("/"))?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(missing);
    step("apt-get", &arguments, Path::new("/")).map(drop)
}

fn exists(program: &str) -> bool {
    DIRECTORIES.iter().any(|directory| Path::new(directory).join(program).exists())
}

/// An archive of the distribution, as this system's own sources name it.
pub fn archive() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.retain(|path| matches!(path.extension().and_then(OsStr::to_str), Some("list" | "sources")));
    let text: Vec<String> = files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let words = text.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    words
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && !word.contains("security"))
        .map(str::to_owned)
        .context("no archive is listed in /etc/apt/sources.list or sources.list.d")
}

/// The unpacked package of a kernel, kept from run to run.
pub fn kernel(work: &Path, name: &str, release: &str) -> Result<PathBuf> {
    let unpacked = work.join(format!("kernel-{name}"));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    eprintln!("fetching kernel {name}");
    let apt = work.join(format!("apt-{release}"));
    for directory in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(directory)).with_context(|| format!("making {}", apt.display()))?;
    }
    let sources = apt.join("release.list");
    fs::write(&sources, format!("deb [signed-by={KEYS}] {} {release} main\n", archive()?))?;
    let option = |name: &str, value: &Path| format!("{name}={}", value.display());
    let options = [
        option("Dir::Etc::sourcelist", &sources),
        option("Dir::Etc::sourceparts", Path::new("/dev/null")),
        option("Dir::State::lists", &apt.join("lists")),
        option("Dir::Cache", &apt),
        // The directory is root's own.
        "APT::Sandbox::User=root".to_owned(),
    ];
    let with = |words: &[&str]| -> Vec<String> {
        let options = options.iter().flat_map(|option| ["-o".to_owned(), option.clone()]);
        options.chain(words.iter().map(|word| (*word).to_owned())).collect()
    };
    let run = |program: &str, words: &[&str]| {
        let words = with(words);
        step(program, &words.iter().map(String::as_str).collect::<Vec<_>>(), &apt)
    };
    run("apt-get", &["update", "-q"])?;
    let depends = run("apt-cache", &["depends", "linux-image-cloud-amd64"])?;
    let depends = String::from_utf8_lossy(&depends);
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let Some(package) = package.filter(|version| version.starts_with(name)) else {
        bail!("release {release} has no kernel {name}; it has: {}", depends.trim())
    };
    run("apt-get", &["download", &format!("linux-image-{package}")])?;
    let file = fs::read_dir(&apt)?.flatten().map(|entry| entry.path());
    let file = file
        .into_iter()
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .context("no package was downloaded")?;
    let part = work.join(format!("kernel-{name}.part"));
    let _ = fs::remove_dir_all(&part);
    step("dpkg-deb", &["-x", &file.display().to_string(), &part.display().to_string()], work)?;
    fs::rename(&part, &unpacked).context("keeping the kernel")?;
    Ok(unpacked)
}
