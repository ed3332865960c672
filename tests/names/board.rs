//! The file that the processes of all runs share (`board.h`), seen from outside.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::scene::Scene;

/// Bytes before the counters of arrivals.
const HEAD_BYTES: usize = 32;

/// The file.
pub struct Board {
    path: PathBuf,
}

/// What it says.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttackCounts {
    /// System calls.
    pub tried: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those that did it.
    pub done: u64,
    /// How often a racer saw its goal.
    pub wins: u32,
}

impl Board {
    /// Makes one with room for so many arrivals.
    pub fn new(scene: &Scene<'_>, arrivals: usize) -> Result<Self> {
        let path = scene.workspace().join("board");
        scene.make_zeros(&path, HEAD_BYTES + 4 * arrivals)?;
        Ok(Self { path })
    }

    /// What the players say they did. It decides nothing.
    pub fn read(&self) -> Result<AttackCounts> {
        let bytes = fs::read(&self.path).with_context(|| format!("reading {}", shown(&self.path)))?;
        let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let short = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
        Ok(AttackCounts { tried: long(0), refused: long(8), done: long(16), wins: short(28) })
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}
