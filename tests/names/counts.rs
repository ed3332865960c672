//! How much is tried at random: by default a cross-section, more by the variable
//! `STOCKADE_NAMES`, such as `git=10000,other=500,race=60,seed=7`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use stockade_testkit::TestUser;

/// The variable.
const VARIABLE: &str = "STOCKADE_NAMES";
/// Most trees in one workspace.
const PART_TREES_MAX: usize = 250;
/// Levels that are tried as each user.
const LEVELS: usize = 2;

/// The counts, of all users and levels together but for the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Trees for git.
    git: usize,
    /// Trees for cargo, and as many for npm.
    other: usize,
    /// How long all races take together, as each user at each level.
    pub race: Duration,
    /// Where the random numbers begin.
    pub seed: u64,
}

const DEFAULT: Counts = Counts { git: 300, other: 20, race: Duration::from_secs(5), seed: 1 };

impl Counts {
    /// Those of the environment.
    pub fn of_environment() -> Result<Self> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Self::parse(&text).with_context(|| format!("reading {VARIABLE}={text}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut counts = DEFAULT;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').with_context(|| format!("{part} has no `=`"))?;
            match name {
                "git" => counts.git = value.parse()?,
                "other" => counts.other = value.parse()?,
                "race" => counts.race = Duration::from_secs(value.parse()?),
                "seed" => counts.seed = value.parse()?,
                _ => bail!("{name} is none of git, other, race, seed"),
            }
        }
        Ok(counts)
    }

    /// Trees of one user at one level.
    fn trees(&self, for_git: bool) -> usize {
        let all = if for_git { self.git } else { self.other };
        all.div_ceil(LEVELS * TestUser::available_users().len()).max(1)
    }

    /// How many of them are played at a time, part by part.
    pub fn parts(&self, for_git: bool) -> Vec<usize> {
        let trees = self.trees(for_git);
        let full = std::iter::repeat_n(PART_TREES_MAX, trees / PART_TREES_MAX);
        full.chain(Some(trees % PART_TREES_MAX).filter(|rest| *rest > 0)).collect()
    }
}
