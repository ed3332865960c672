//! What the lab's servers saw, and whether it was all agreed to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Events that a failure shows.
const SHOWN_MAX: usize = 40;

/// The names of the lab and their addresses.
pub struct Names(Vec<(String, Vec<IpAddr>)>);

impl FromStr for Names {
    type Err = anyhow::Error;

    fn from_str(table: &str) -> Result<Self> {
        let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let (name, addresses) = line.split_once('\t').with_context(|| format!("no name: {line}"))?;
            let addresses = addresses.split([',', '|']).map(str::parse).collect::<Result<Vec<_>, _>>()?;
            Ok((name.to_owned(), addresses))
        };
        Ok(Self(lines.map(read).collect::<Result<_>>()?))
    }
}

impl Names {
    /// Reads what the servers noted.
    pub fn look(&self, log: &[u8]) -> Result<Sight> {
        let lines = log.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let event = |line: &[u8]| {
            let note: Value = serde_json::from_slice(line)?;
            let to = note["to"].as_str().and_then(|to| to.parse::<IpAddr>().ok());
            let port = note["port"].as_u64().unwrap_or_default();
            let target = to.map(|to| format!("{}:{port}", self.name_of(to)));
            Ok(Event { note, target: target.unwrap_or_default() })
        };
        Ok(Sight(lines.map(event).collect::<Result<_>>()?))
    }

    /// The name that only this address has, or the address itself.
    fn name_of(&self, address: IpAddr) -> String {
        let public = |a: &IpAddr| a.to_string().starts_with("93.") || a.to_string().starts_with("2606:");
        let named = self.0.iter().find(|(_, all)| public(&address) && all.contains(&address));
        match (named, address) {
            (Some((name, _)), _) => name.clone(),
            (None, IpAddr::V6(address)) => format!("[{address}]"),
            (None, IpAddr::V4(address)) => address.to_string(),
        }
    }
}

/// One thing that a server saw.
struct Event {
    note: Value,
    /// `NAME:PORT` of the address that was reached.
    target: String,
}

/// What the servers saw.
pub struct Sight(Vec<Event>);

impl Sight {
    /// What was said on connections that are only counted.
    pub fn said(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|event| event.note["what"] == "said").filter_map(|event| event.note["data"].as_str())
    }

    /// Whether something came to this target.
    pub fn reached(&self, target: &str) -> bool {
        self.0.iter().any(|event| event.note["what"] == "tcp" && event.target == target)
    }

    /// Whether something came to one of these targets.
    pub fn reached_any(&self, targets: &[&str]) -> bool {
        targets.iter().any(|target| self.reached(target))
    }

    /// All requests that HTTP servers got, as they noted them.
    pub fn requests(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|event| &event.note).filter(|note| note["what"] == "http")
    }

    /// How often an HTTP server was asked for exactly this.
    pub fn count(&self, host: &str, path: &str) -> usize {
        self.requests().filter(|note| note["host"] == host && note["path"] == path).count()
    }

    /// What was seen although it is none of these targets: connections,
    /// datagrams, questions for names, and what was said in a connection to one
    /// host for another.
    pub fn strangers(&self, agreed: &[&str]) -> Vec<String> {
        self.0.iter().filter(|event| !event.is_agreed(agreed)).map(|event| event.note.to_string()).collect()
    }
}

impl Event {
    fn is_agreed(&self, agreed: &[&str]) -> bool {
        let host_of = |target: &str| target.rsplit_once(':').map_or(target, |(host, _)| host).to_owned();
        let said = |name: &str| fits(&host_of(&self.target), name) || name == host_of(&self.target);
        let there = agreed.contains(&self.target.as_str());
        match self.note["what"].as_str().unwrap_or_default() {
            "dns" => {
                let name = self.note["name"].as_str().unwrap_or_default();
                agreed.iter().any(|target| fits(&host_of(target), name))
            }
            "http" => {
                // A final dot is of the same name.
                let host = self.note["host"].as_str().map(|host| host.strip_suffix('.').unwrap_or(host));
                there && self.note["hosts"] == 1 && host.is_some_and(said)
            }
            "tls" => there && self.note["name"].as_str().is_some_and(said),
            "tcp" | "said" => there,
            _ => false,
        }
    }
}

/// Whether a name is the one meant, which may begin with `*.`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(parent) => name.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => pattern == name,
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in self.0.iter().take(SHOWN_MAX) {
            write!(f, "\n  {} {}", event.target, event.note)?;
        }
        match self.0.len().checked_sub(SHOWN_MAX) {
            Some(rest @ 1..) => write!(f, "\n  and {rest} more"),
            _ => Ok(()),
        }
    }
}
