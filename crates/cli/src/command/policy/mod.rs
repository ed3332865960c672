//! `stockade policy`: checks, explains, tests, formats, replays, imports, suggests and amends
//! policy. Runs no command.

mod check;
pub mod explain;
mod import;
pub mod lasting;
mod learn;
mod replay;
mod test;
pub mod write;

use std::io::Read;
use std::path::{Path, PathBuf};

use stockade_policy::load::{self, Sources};
use stockade_policy::{Circumstances, Layer, LayerText, Settings};

use super::{Ended, now_ms, variable};
use crate::failure::{Failure, quoted};
use crate::places;
use crate::policy_args::{LayerArg, PolicyCommand};

/// Largest file that is read, in bytes: larger than any configuration.
const FILE_LIMIT_BYTES: u64 = 4 << 20;

/// Dispatches to the subcommand.
///
/// # Errors
/// [`Failure`] if a file cannot be read, or if the configuration cannot be used.
pub fn policy(typed: PolicyCommand) -> Ended {
    match typed {
        PolicyCommand::Check(typed) => check::check(&typed),
        PolicyCommand::Explain(typed) => explain::explain(typed),
        PolicyCommand::Test(typed) => test::test(&typed),
        PolicyCommand::Fmt(typed) => write::format(&typed),
        PolicyCommand::Table(typed) => check::table(&typed),
        PolicyCommand::Groups(typed) => check::groups(&typed),
        PolicyCommand::Replay(typed) => replay::replay(&typed),
        PolicyCommand::Import(typed) => import::import(&typed),
        PolicyCommand::Suggest(typed) => learn::suggest(&typed),
        PolicyCommand::Amend(typed) => write::amend(typed),
    }
}

fn layer(layer: LayerArg) -> Layer {
    match layer {
        LayerArg::Managed => Layer::Managed,
        LayerArg::System => Layer::System,
        LayerArg::User => Layer::User,
        LayerArg::Project => Layer::Project,
        LayerArg::Session => Layer::Session,
    }
}

/// Returns the named workspace, or the current directory.
fn workspace(typed: Option<&Path>) -> Result<PathBuf, Failure> {
    match typed {
        None => places::current_directory(),
        Some(dir) => places::real_directory(dir, "the workspace"),
    }
}

fn sources(workspace: &Path) -> Result<Sources, Failure> {
    places::sources(Some(workspace), &variable)
}

/// Loads the configuration in force. The file `instead` replaces the user's own, if it is named.
fn settings(workspace: &Path, instead: Option<&Path>) -> Result<Settings, Failure> {
    let sources = sources(workspace)?;
    Ok(match instead {
        None => load::load(&sources)?,
        Some(path) => load::load_with(&sources, vec![layer_text(Layer::User, path)?])?,
    })
}

fn layer_text(layer: Layer, path: &Path) -> Result<LayerText, Failure> {
    Ok(LayerText { layer, path: path.to_owned(), source: read(path)? })
}

/// Reads a whole text file; `-` is standard input.
fn read(path: &Path) -> Result<String, Failure> {
    let wrong = |e: std::io::Error| Failure::new(format!("cannot read {}: {e}", quoted(path)));
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    } else {
        let file = std::fs::File::open(path).map_err(wrong)?;
        file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    }
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        return Err(Failure::new(format!("{} is larger than 4 MiB", quoted(path))));
    }
    String::from_utf8(bytes).map_err(|_| Failure::new(format!("{} is not UTF-8", quoted(path))))
}

/// Returns the circumstances of a request that a user makes now.
fn around(tool: Option<&str>) -> Circumstances {
    Circumstances { user: user_name(), tool: tool.map(str::to_owned), time_ms: Some(now_ms()), keeps_changes: None }
}

/// Returns the user's name from `/etc/passwd` (passwd(5)), not from the environment, which any
/// program can set.
fn user_name() -> Option<String> {
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id == uid).then(|| name.to_owned())
    })
}
