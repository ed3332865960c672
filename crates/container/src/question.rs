//! Requests of a container to the host's egress proxy, and the answers.

use std::net::IpAddr;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_egress::DialFailure;
use stockade_model::{RawText, Target};

use crate::frames::Frame;

/// Most addresses of a name in an answer.
const ADDRESSES_MAX: usize = 16;
/// Longest text of an answer, in characters.
const TEXT_MAX: usize = 512;

/// Request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// A connection to this target, for a process in the container.
    Connect { target: Target, pid: Option<u32>, program: Option<RawText> },
    /// The addresses of a name.
    LookUp { name: String },
}

/// Answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The connection is made; its bytes follow.
    Connected,
    /// A rule refuses it.
    Refused { rule: String },
    /// The network failed.
    Failed { errno: i32, why: String },
    /// The name does not exist.
    NoSuchName,
    /// The addresses of a name, or the reason for a failed lookup.
    Addresses(Result<Vec<IpAddr>, String>),
}

impl Question {
    pub(crate) fn to_frame(&self, id: u32) -> Frame {
        Frame::Asked(id, encoded(self))
    }
}

impl Answer {
    pub(crate) fn to_frame(&self, id: u32) -> Frame {
        Frame::Answered(id, encoded(self))
    }

    pub(crate) fn failed(errno: Errno, why: &str) -> Self {
        Self::Failed { errno: errno.raw_os_error(), why: shortened(why) }
    }

    pub(crate) fn addresses(mut all: Vec<IpAddr>) -> Self {
        all.truncate(ADDRESSES_MAX);
        Self::Addresses(Ok(all))
    }

    pub(crate) fn of(failure: &DialFailure) -> Self {
        match failure {
            DialFailure::Refused { rule } => Self::Refused { rule: shortened(rule) },
            DialFailure::Failed { errno, why } => Self::failed(*errno, why),
        }
    }

    /// Returns the reason for a missing connection.
    pub(crate) fn into_failure(self) -> DialFailure {
        match self {
            Self::Refused { rule } => DialFailure::Refused { rule },
            Self::Failed { errno, why } => DialFailure::Failed { errno: Errno::from_raw_os_error(errno), why },
            Self::Connected | Self::NoSuchName | Self::Addresses(_) => {
                DialFailure::Failed { errno: Errno::PROTO, why: "the way out cannot be understood".to_owned() }
            }
        }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Encoding cannot fail for either type.
fn encoded(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
