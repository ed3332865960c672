//! The house's chores, for people: `cargo xtask bless` writes every generated
//! file anew, `cargo xtask prepush` runs formatting, lints and the house rules.
//!
//! It must not know what is generated or tested: the tests hold that, and this
//! only calls them.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "chores are programs that are started")]

mod dist;
mod image;
mod kernels;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

const USAGE: &str =
    "usage: cargo xtask bless | prepush | dist [--binary PATH] [--output DIR] [--check] | image [--small] FILE.tar | kernels [--short | --only TARGET [FILTER]] [KERNEL...]
  bless    rewrites the schemas, the configuration reference, the guide's transcript and the picture
  prepush  formatting, lints and the house rules
  dist     a release in target/dist: static binary, Debian package, SBOM, checksums; with
           --check they are installed and tested in fresh systems, as root
  image    the base image of sandboxes, of the distribution's packages; prints its digest;
           a small one for tests with --small
  kernels  the suites in virtual machines with the distribution's kernels, as root";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map_or("", String::as_str) {
        "bless" => bless(),
        "prepush" => prepush(),
        "dist" => dist::run(&arguments[1..]),
        "image" => image::build(&arguments[1..]),
        "kernels" => kernels::run(&arguments[1..]),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bless() -> Result<()> {
    run("cargo", &["test", "--quiet", "-p", "stockade-policy", "--test", "generated"], true)?;
    // The suites' own step builds the binary that the transcript is made with.
    run("./test", &["build", "transcript"], true)
}

fn prepush() -> Result<()> {
    run("./test", &["format", "clippy"], false)?;
    run("cargo", &["test", "--quiet", "-p", "stockade-tests", "--test", "house"], false)
}

/// Runs a program in the workspace's root; with `bless`, freshness tests write
/// what they would compare.
fn run(program: &str, arguments: &[&str], bless: bool) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace()?);
    if bless {
        command.env("STOCKADE_BLESS", "1");
    }
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("`{program} {}` ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// The directory of the workspace.
fn workspace() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?.to_owned())
}
