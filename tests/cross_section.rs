//! What a suite of rows plays where nobody names a part of it. Each row can be played as
//! each user, at each level and in each kind of containers; all of that takes hours, so a
//! row has its turn in some of these ways. Its name alone says in which, so that a row is
//! played the same each time, and all ways get as many rows.

use std::collections::BTreeMap;

use stockade_testkit::plays_all;

/// What a suite was asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Parts of names, parted by commas; empty for everything.
    pub filter: String,
}

/// Which tasks share a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is played always.
    Always,
    /// Of the tasks with this key one is played.
    One(String),
    /// The same, but only for one in so many keys.
    Rarely(String, usize),
}

/// A part of every task's name: it names them all.
const ANY: &str = "/";

impl Wanted {
    /// Of the words of a suite. `--all` names all tasks, as a filter names some.
    pub fn of(arguments: &[String]) -> Self {
        let filter = arguments.iter().find(|word| !word.starts_with('-')).cloned().unwrap_or_default();
        let is_all = filter.is_empty() && arguments.iter().any(|word| word == "--all");
        Self { filter: if is_all { ANY.to_owned() } else { filter } }
    }

    /// Whether a task of this name is asked for.
    pub fn names(&self, task: &str) -> bool {
        self.filter.split(',').any(|part| task.contains(part))
    }

    /// The tasks of a cross-section, or all where a part of them was named.
    pub fn narrowed<T>(&self, tasks: Vec<T>, turn: impl Fn(&T) -> Turn) -> Vec<T> {
        if self.filter.is_empty() { narrowed(tasks, turn) } else { tasks }
    }

    /// Says what a cross-section left out.
    pub fn tell(&self, played: usize, all: usize) {
        if played < all {
            println!("a cross-section: {played} of {all} rows x users x ways; all with `--all`");
        }
    }
}

/// One row's turns among its native pairs of user and level. What is recorded of real escapes
/// is tried by both users at level full, whatever turn it has besides; `is_slow` takes that
/// away from what waits for long.
pub fn of_native_row(id: &str, is_full: bool, is_slow: bool) -> Turn {
    match id.starts_with("esc-") && !is_slow {
        true if is_full => Turn::Always,
        true => Turn::Rarely(format!("{id}/restricted"), 2),
        false => Turn::One(id.to_owned()),
    }
}

fn narrowed<T>(tasks: Vec<T>, turn: impl Fn(&T) -> Turn) -> Vec<T> {
    let turns: Vec<Turn> = tasks.iter().map(turn).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, _) in turns.iter().filter_map(Turn::parts) {
        *counts.entry(key).or_default() += 1;
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut played = Vec::new();
    for (task, turn) in tasks.into_iter().zip(&turns) {
        let is_played = turn.parts().is_none_or(|(key, rarity)| {
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

impl Turn {
    fn parts(&self) -> Option<(&str, usize)> {
        match self {
            Self::Always => None,
            Self::One(key) => Some((key, 1)),
            Self::Rarely(key, rarity) => Some((key, *rarity)),
        }
    }
}

/// Who plays a test that takes long: one of these, or each where `STOCKADE_ALL` is set.
pub fn one_or_each<T>(test: &str, of: Vec<T>) -> Vec<T> {
    if plays_all() {
        return of;
    }
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
