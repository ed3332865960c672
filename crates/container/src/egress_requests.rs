//! Requests of a container to the host's egress proxy, and the answers.

use std::net::IpAddr;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stockade_egress::DialError;
use stockade_model::{NetworkTarget, RawText};

use crate::frames::ChannelFrame;

/// Most addresses of a name in an answer.
const ADDRESSES_MAX: usize = 16;
/// Longest text of an answer, in characters.
const TEXT_MAX_CHARS: usize = 512;

/// Request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TunnelRequest {
    /// A connection to this target, for a process in the container.
    Connect { target: NetworkTarget, pid: Option<u32>, program: Option<RawText> },
    /// The addresses of a name.
    LookUp { name: String },
}

/// Answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TunnelResponse {
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

impl TunnelRequest {
    pub(crate) fn to_frame(&self, id: u32) -> ChannelFrame {
        ChannelFrame::Asked(id, encode_json(self))
    }
}

impl TunnelResponse {
    pub(crate) fn to_frame(&self, id: u32) -> ChannelFrame {
        ChannelFrame::Answered(id, encode_json(self))
    }

    pub(crate) fn from_errno(errno: Errno, why: &str) -> Self {
        Self::Failed { errno: errno.raw_os_error(), why: shorten_text(why) }
    }

    pub(crate) fn from_addresses(mut all: Vec<IpAddr>) -> Self {
        all.truncate(ADDRESSES_MAX);
        Self::Addresses(Ok(all))
    }

    pub(crate) fn from_dial_error(failure: &DialError) -> Self {
        match failure {
            DialError::Refused { rule } => Self::Refused { rule: shorten_text(rule) },
            DialError::Failed { errno, why } => Self::from_errno(*errno, why),
        }
    }

    /// Returns the reason for a missing connection.
    pub(crate) fn into_failure(self) -> DialError {
        match self {
            Self::Refused { rule } => DialError::Refused { rule },
            Self::Failed { errno, why } => DialError::Failed { errno: Errno::from_raw_os_error(errno), why },
            Self::Connected | Self::NoSuchName | Self::Addresses(_) => DialError::Failed {
                errno: Errno::PROTO,
                why: "the egress proxy sent an unexpected response".to_owned(),
            },
        }
    }
}

fn shorten_text(text: &str) -> String {
    text.chars().take(TEXT_MAX_CHARS).collect()
}

/// Encoding cannot fail for either type.
fn encode_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
