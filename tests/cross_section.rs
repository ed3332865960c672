//! What a suite of rows plays where nobody names a part of it. Each row can be played as
//! each user, at each level and in each kind of containers; all of that takes hours, so a
//! row has its turn in some of these ways. Its name alone says in which, so that a row is
//! played the same each time, and all ways get as many rows.

use std::collections::BTreeMap;

use stockade_testkit::plays_all;

/// Set where each test of users is played by one of them.
const ONE_USER_VARIABLE: &str = "STOCKADE_ONE_USER";

/// The tasks that a suite is asked to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Parts of names, parted by commas; empty for everything.
    pub filter: String,
    /// A smaller cross-section: of what a row runs beside its own attempt, one in so many.
    pub share: usize,
    /// One row in so many.
    pub rows: usize,
}

/// Which tasks share a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Each of the tasks with this key is played, but one of them in a smaller cross-section.
    Each(String),
    /// Of the tasks with this key one is played.
    One(String),
    /// The same, but only for one in so many keys, and for fewer in a smaller cross-section.
    Rarely(String, usize),
}

/// A part of every task's name: it names them all.
const ANY: &str = "/";

impl Wanted {
    /// Of the words of a suite. `--all` names all tasks, as a filter names some; `--share=N` and
    /// `--rows=N` ask for a smaller cross-section.
    pub fn of(arguments: &[String]) -> Self {
        let filter = arguments.iter().find(|word| !word.starts_with('-')).cloned().unwrap_or_default();
        let is_all = filter.is_empty() && arguments.iter().any(|word| word == "--all");
        let number = |option: &str| {
            let value = arguments.iter().find_map(|word| word.strip_prefix(option))?;
            value.parse().ok().filter(|number| *number > 0)
        };
        Self {
            filter: if is_all { ANY.to_owned() } else { filter },
            share: number("--share=").unwrap_or(1),
            rows: number("--rows=").unwrap_or(1),
        }
    }

    /// Words that ask for the same.
    pub fn words(&self) -> [String; 3] {
        [self.filter.clone(), format!("--share={}", self.share), format!("--rows={}", self.rows)]
    }

    /// Whether a task of this name is asked for.
    pub fn names(&self, task: &str) -> bool {
        self.filter.split(',').any(|part| task.contains(part))
    }

    /// The tasks of a cross-section, or all where a part of them was named.
    pub fn narrowed<T>(&self, tasks: Vec<T>, turn: impl Fn(&T) -> Turn) -> Vec<T> {
        if self.filter.is_empty() { self.narrowed_by_turns(tasks, turn) } else { tasks }
    }

    /// Says what a cross-section left out.
    pub fn tell(&self, played: usize, all: usize) {
        if played < all {
            println!("a cross-section: {played} of {all} rows x users x ways; all with `--all`");
        }
    }

    fn narrowed_by_turns<T>(&self, tasks: Vec<T>, turn: impl Fn(&T) -> Turn) -> Vec<T> {
        let turns: Vec<Turn> = tasks.iter().map(turn).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, _) in turns.iter().filter_map(|turn| self.key_and_rarity(turn)) {
            *counts.entry(key).or_default() += 1;
        }
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut played = Vec::new();
        for (task, turn) in tasks.into_iter().zip(&turns) {
            let is_played = self.key_and_rarity(turn).is_none_or(|(key, rarity)| {
                let number = seen.entry(key).or_default();
                *number += 1;
                *number - 1 == chosen(key, counts[key] * rarity)
            });
            if is_played {
                played.push(task);
            }
        }
        played
    }

    /// The tasks that share a turn, and that one in so many of such is played; none for a task
    /// that is always played.
    fn key_and_rarity<'t>(&self, turn: &'t Turn) -> Option<(&'t str, usize)> {
        match turn {
            Turn::Each(_) if self.share == 1 && self.rows == 1 => None,
            Turn::Each(key) | Turn::One(key) => Some((key, self.rows)),
            Turn::Rarely(key, rarity) => Some((key, rarity * self.share * self.rows)),
        }
    }
}

/// One row's turns among its native pairs of user and level. What is recorded of real escapes
/// is tried by both users at level full, whatever turn it has besides; `is_slow` takes that
/// away from what waits for long.
pub fn of_native_row(id: &str, is_full: bool, is_slow: bool) -> Turn {
    match id.starts_with("esc-") && !is_slow {
        true if is_full => Turn::Each(id.to_owned()),
        true => Turn::Rarely(format!("{id}/restricted"), 2),
        false => Turn::One(id.to_owned()),
    }
}

/// The users of a test: each of them, or one where `STOCKADE_ONE_USER` is set.
pub fn each_or_one<T>(test: &str, of: Vec<T>) -> Vec<T> {
    if std::env::var_os(ONE_USER_VARIABLE).is_some() { one_of(test, of) } else { of }
}

/// The users of a test that takes long: one of these, or each where `STOCKADE_ALL` is set.
pub fn one_or_each<T>(test: &str, of: Vec<T>) -> Vec<T> {
    if plays_all() { of } else { one_of(test, of) }
}

fn one_of<T>(test: &str, of: Vec<T>) -> Vec<T> {
    let number = chosen(test, of.len());
    of.into_iter().skip(number).take(1).collect()
}

/// Which of so many is a name's own: the same for ever, on every machine.
fn chosen(name: &str, of: usize) -> usize {
    // FNV-1a, whose last bits are mixed: they decide alone among two or four.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed).unwrap_or_default() % of.max(1)
}
