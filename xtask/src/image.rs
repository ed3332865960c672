//! The base image of sandboxes: a root tree of the distribution's packages, without
//! any registry. The same packages give the same bytes, so the image is named by
//! its content.
//!
//! The work is that of mmdebstrap(1); what is in the image is said here.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest, Sha256};

/// The release that it is made of.
pub const SUITE: &str = "bookworm";

/// What is in it beside a minimal system.
const PACKAGES: &[&str] = &[
    "bash",
    "build-essential",
    "ca-certificates",
    "curl",
    "git",
    "less",
    "nodejs",
    "npm",
    "patch",
    "pkg-config",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "unzip",
    "xz-utils",
];

/// What nobody reads inside.
const LEFT_OUT: &[&str] = &["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

/// Packages of Java cannot be set up where there is no directory for their pages.
const FIRST_STEP: &str = r#"install --directory "$1/usr/share/man/man1""#;

/// Whom commands run as, and where they find a workspace to be mounted.
const LAST_STEPS: &[&str] = &[
    r#"chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash agent"#,
    r#"install --directory --owner=1000 --group=1000 "$1/workspace""#,
];

/// No file is newer, so that the day of the making does not show
/// (2025-01-01; `SOURCE_DATE_EPOCH` says otherwise).
const NEWEST: &str = "1735689600";

/// What the tests' own image has: it is made in seconds, and nothing in it is set up.
const SMALL: &[&str] = &[
    "bash",
    "coreutils",
    "curl",
    "findutils",
    "git",
    "grep",
    "hostname",
    "iproute2",
    "iputils-ping",
    "mount",
    "procps",
    "python3",
    "sed",
    "tar",
    "util-linux",
];

/// What packages would do when they are set up: users, and programs of those names.
const SMALL_STEPS: &[&str] = &[
    r#"ln --symbolic --force bash "$1/bin/sh""#,
    r#"[ ! -e "$1/usr/bin/gcc" ] || ln --symbolic --force gcc "$1/usr/bin/cc""#,
    r#"printf 'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/bash\n' >"$1/etc/passwd""#,
    r#"printf 'root:x:0:\nagent:x:1000:\n' >"$1/etc/group""#,
    r#"install --directory --owner=1000 --group=1000 "$1/workspace" "$1/home/agent" && mkdir --parents "$1/run""#,
];

/// Makes the image at `path`, a tar archive, and prints its digest.
pub fn build(arguments: &[String]) -> Result<()> {
    let (is_small, arguments) = match arguments {
        [small, rest @ ..] if small == "--small" => (true, rest),
        all => (false, all),
    };
    let (more, path) = match arguments {
        [path] => (None, path),
        [with, more, path] if with == "--with" => (Some(more.as_str()), path),
        _ => bail!("usage: cargo xtask image [--small] [--with PACKAGE,...] FILE.tar"),
    };
    let (variant, packages, (hook, steps)) = match is_small {
        true => ("extract", SMALL, ("extract", SMALL_STEPS)),
        false => ("minbase", PACKAGES, ("customize", LAST_STEPS)),
    };
    let packages: Vec<&str> = packages.iter().copied().chain(more).collect();
    let newest = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| NEWEST.to_owned());
    let mut command = Command::new("mmdebstrap");
    command.env("SOURCE_DATE_EPOCH", newest).env_remove("TMPDIR");
    command.args([&format!("--variant={variant}"), "--format=tar", &format!("--include={}", packages.join(","))]);
    command.args(LEFT_OUT.iter().map(|paths| format!("--dpkgopt=path-exclude={paths}")));
    command.args((!is_small).then(|| format!("--essential-hook={FIRST_STEP}")));
    command.args(steps.iter().map(|step| format!("--{hook}-hook={step}")));
    command.args([SUITE, path]);
    let status = command.status().context("cannot start mmdebstrap: apt install mmdebstrap")?;
    if !status.success() {
        bail!("mmdebstrap ended with {status}");
    }
    writeln!(std::io::stdout(), "{}", digest(Path::new(path))?)?;
    Ok(())
}

/// `sha256:` and the digits of a file.
fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut hasher, mut block) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => break,
            length => hasher.update(&block[..length]),
        }
    }
    let digits: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}
