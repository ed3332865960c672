//! The base image of sandboxes: a root tree of the distribution's packages, without
//! any registry. The same packages give the same bytes, so the image is named by
//! its content.
//!
//! mmdebstrap(1) does the work; this module and the lists in `image/` define the content.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::dist::output_of;

/// Debian release of the image.
pub const SUITE: &str = "bookworm";

/// Packages besides those of a minimal system.
const PACKAGES: &str = include_str!("image/packages");

/// Paths that are left out, because no program reads them inside.
const LEFT_OUT: &[&str] = &["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

/// Packages of Java cannot be set up without a directory for their pages.
const FIRST_STEP: &str = r#"install --directory "$1/usr/share/man/man1""#;

/// Makes the user of commands, and the mount point of the workspace.
const LAST_STEPS: &[&str] = &[
    r#"chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash agent"#,
    r#"install --directory --owner=1000 --group=1000 "$1/workspace""#,
];

/// Newest modification time, so that the image does not depend on the day of its build
/// (2025-01-01; `SOURCE_DATE_EPOCH` overrides it).
const NEWEST: &str = "1735689600";

/// Packages of the image for tests. It is made in seconds, because no package is set up.
const SMALL_PACKAGES: &str = include_str!("image/small_packages");

/// Does the parts of the set-up that tests need: users, and programs of these names.
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
        true => ("extract", SMALL_PACKAGES, ("extract", SMALL_STEPS)),
        false => ("minbase", PACKAGES, ("customize", LAST_STEPS)),
    };
    let packages: Vec<&str> = packages.lines().chain(more).collect();
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
    let sum = output_of(Command::new("sha256sum").arg(path))?;
    println!("sha256:{}", sum.split(' ').next().unwrap_or_default());
    Ok(())
}
