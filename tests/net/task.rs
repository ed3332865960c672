//! What the suite consists of. Must not know what a task does.

use anyhow::Result;
use stockade_testkit::TestUser;
use stockade_tests::cross_section::Turn;

use crate::lab::Lab;

/// What a task does: an error says what was breached, or did not work.
pub type Play = Box<dyn Fn(&Lab) -> Result<()>>;

/// One thing to try.
pub struct Task {
    /// `pip/granted/root`
    pub name: String,
    /// The service that it needs behind the wire.
    pub service: Option<&'static str>,
    /// It waits for long, so it gets a lane of its own.
    pub is_slow: bool,
    /// It shares a lane with those that name the same one, and with no other.
    pub lane: Option<&'static str>,
    /// It makes containers, of the image that is made before the lab stands.
    pub needs_image: bool,
    /// Why it cannot run here.
    pub not_here: Option<String>,
    /// What else a cross-section plays instead.
    pub turn: Turn,
    pub play: Play,
}

impl Task {
    pub fn new(name: String, play: impl Fn(&Lab) -> Result<()> + 'static) -> Self {
        Self {
            turn: Turn::Each(name.clone()),
            name,
            service: None,
            is_slow: false,
            lane: None,
            needs_image: false,
            not_here: None,
            play: Box::new(play),
        }
    }
}

/// A task without a sandbox, which shows that a row proves something.
pub fn control_task(row: &str, play: impl Fn(&Lab) -> Result<()> + 'static) -> Task {
    let name = format!("{row}/control");
    Task { turn: Turn::Rarely(name.clone(), 1), ..Task::new(name, play) }
}

/// Whoever plays controls: the most powerful user that can be had.
pub fn strongest() -> TestUser {
    TestUser::available_users()[0]
}
