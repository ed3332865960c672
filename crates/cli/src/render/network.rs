//! Connections as text: one line for each, and a summary at the end of a run.

use std::fmt::Write as _;

use serde::Serialize;
use stockade_model::{
    AttemptRecord, ConnectionEnd, ConnectionRecord, Denial, DenialResolution, DeniedOperation, EventKind, HostUse,
    RawText,
};

use super::{TextLayout, count_noun, escape_text, format_duration, name_of, write_wrapped};

/// Hosts that are shown; the rest is counted.
const MAX_HOSTS_SHOWN: usize = 12;
/// Most hosts, and most refusals, that a table distinguishes.
const MAX_HOSTS_COUNTED: usize = 1_000;

/// Formats one connection on one line: `pip to pypi.org:443 (151.101.0.223), 1.2 KiB up, 3 MiB
/// down, 1.2 s, closed   (egress.allow pypi.org:443)`.
pub fn format_connection(record: &ConnectionRecord) -> String {
    let program = record.program.as_ref().map(|program| format!("{} to ", base_name(program))).unwrap_or_default();
    let mut text = format!("{program}{}", record.target);
    if let Some(address) =
        record.address.filter(|address| record.target.host != stockade_model::Host::from_address(*address))
    {
        text += &format!(" ({address})");
    }
    if record.bytes_up > 0 || record.bytes_down > 0 {
        text += &format!(", {} up, {} down", format_size(record.bytes_up), format_size(record.bytes_down));
    }
    let end = match record.end {
        ConnectionEnd::RunEnded => "ended with the run".to_owned(),
        end => name_of(end),
    };
    text += &format!(", {}, {end}", format_duration(record.duration_ms));
    if let Some(why) = &record.why {
        text += &format!(": {}", escape_text(why));
    }
    if let Some(name) = record.tls_name.as_ref().filter(|name| name.as_bytes() != host_bytes(record)) {
        text += &format!(", TLS name {}", name.to_escaped());
    }
    format!("{text}   ({})", escape_text(&record.rule))
}

fn host_bytes(record: &ConnectionRecord) -> &[u8] {
    record.target.host.name().map_or(&[], |name| name.as_str().as_bytes())
}

fn base_name(program: &RawText) -> String {
    program.as_path().file_name().map_or_else(|| program.to_escaped(), |name| RawText::from(name).to_escaped())
}

/// Writes the line about the hosts of the last attempt; none if there were none.
pub fn hosts_used(out: &mut String, attempt: &AttemptRecord, style: TextLayout) {
    let reached: Vec<&HostUse> = attempt.connections.iter().filter(|known| known.connections > 0).collect();
    if reached.is_empty() {
        return;
    }
    let mut shown: Vec<String> = reached.iter().take(MAX_HOSTS_SHOWN).map(|known| one_host(known)).collect();
    if reached.len() > MAX_HOSTS_SHOWN {
        shown.push(format!("and {} more", reached.len() - MAX_HOSTS_SHOWN));
    }
    write_wrapped(out, style, "• ", &format!("{} used: {}", count_noun(reached.len(), "host"), shown.join(", ")));
}

fn one_host(known: &HostUse) -> String {
    let times = if known.connections > 1 { format!("{} times, ", known.connections) } else { String::new() };
    format!("{} ({times}{} up, {} down)", known.target, format_size(known.bytes_up), format_size(known.bytes_down))
}

/// Returns whether a refusal concerns a connection, or data on one.
pub fn is_connect(denial: &Denial) -> bool {
    matches!(denial.operation, DeniedOperation::Connect | DeniedOperation::Secret)
}

/// Hosts that runs connected to or were refused, counted from events.
#[derive(Debug, Default, Serialize)]
pub struct HostStatistics {
    hosts: Vec<HostUse>,
    /// Connections to hosts after the first thousand.
    left_out: u64,
    refused: Vec<RefusedHost>,
    /// Refusals of hosts after the first thousand.
    refused_left_out: u64,
}

#[derive(Debug, Serialize)]
struct RefusedHost {
    object: RawText,
    rule: String,
    times: u64,
}

impl HostStatistics {
    /// Counts an event.
    pub fn count_event(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Connection { connection, .. } => {
                HostUse::count_connection(&mut self.hosts, &mut self.left_out, MAX_HOSTS_COUNTED, connection);
            }
            EventKind::Denied { denial } if is_connect(denial) && denial.resolution != DenialResolution::Granted => {
                self.count_refusal(denial);
            }
            _ => {}
        }
    }

    /// Counts a refusal. A repeated refusal has two events: the first one, and one with the total
    /// count.
    fn count_refusal(&mut self, denial: &Denial) {
        let more = denial.count.saturating_sub(1).max(1);
        let same = |known: &RefusedHost| known.object == denial.object && known.rule == denial.rule;
        match self.refused.iter().position(same) {
            Some(at) => self.refused[at].times = self.refused[at].times.saturating_add(more),
            None if self.refused.len() >= MAX_HOSTS_COUNTED => self.refused_left_out += 1,
            None => self.refused.push(RefusedHost {
                object: denial.object.clone(),
                rule: denial.rule.clone(),
                times: denial.count,
            }),
        }
    }
}

/// Formats a line for each host, by decreasing bytes, then the refusals.
pub fn format_table(reached: &HostStatistics) -> String {
    let mut hosts: Vec<&HostUse> = reached.hosts.iter().collect();
    let bytes = |known: &HostUse| known.bytes_up.saturating_add(known.bytes_down);
    hosts.sort_by_key(|known| (std::cmp::Reverse(bytes(known)), known.target.clone()));
    let names: Vec<String> = hosts.iter().map(|known| known.target.to_string()).collect();
    let wide = names.iter().map(String::len).max().unwrap_or(0).max("HOST".len());
    let mut out = format!("{:wide$}  CONNECTIONS  FAILED  REFUSED          UP        DOWN\n", "HOST");
    for (name, known) in names.iter().zip(hosts) {
        let (up, down) = (format_size(known.bytes_up), format_size(known.bytes_down));
        let (connections, failed, refused) = (known.connections, known.failed, known.refused);
        let _ = writeln!(out, "{name:wide$}  {connections:>11}  {failed:>6}  {refused:>7}  {up:>10}  {down:>10}");
    }
    if reached.left_out > 0 {
        let _ = writeln!(out, "and {} to further hosts", count_noun(reached.left_out, "connection"));
    }
    for known in &reached.refused {
        let times = if known.times > 1 { format!(", {} times", known.times) } else { String::new() };
        let rule = escape_text(&known.rule);
        let _ = writeln!(out, "refused: {}   ({rule}{times})", known.object.to_escaped());
    }
    if reached.refused_left_out > 0 {
        let _ = writeln!(out, "and {} of further hosts", count_noun(reached.refused_left_out, "refusal"));
    }
    out
}

/// Formats a size for a user: `12 B`, `1.2 KiB`, `3.0 GiB`.
pub fn format_size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((unit, shift)) => {
            // In tenths, rounded down.
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample_record() -> ConnectionRecord {
        ConnectionRecord {
            pid: Some(7),
            program: Some("/usr/bin/pip".into()),
            target: "pypi.org:443".parse().unwrap(),
            address: Some("151.101.0.223".parse().unwrap()),
            rule: "egress.allow pypi.org:443".into(),
            tls_name: Some("pypi.org".into()),
            bytes_up: 1_300,
            bytes_down: 3 << 20,
            duration_ms: 1_234,
            end: ConnectionEnd::Closed,
            why: None,
        }
    }

    #[test]
    fn connections() {
        assert_eq!(
            format_connection(&sample_record()),
            "pip to pypi.org:443 (151.101.0.223), 1.2 KiB up, 3.0 MiB down, 1.2 s, closed   (egress.allow pypi.org:443)"
        );
        let refused = ConnectionRecord {
            program: None,
            address: None,
            tls_name: Some("evil\u{7}".into()),
            bytes_up: 0,
            bytes_down: 0,
            end: ConnectionEnd::Refused,
            why: Some("another \u{1b}name".into()),
            ..sample_record()
        };
        assert_eq!(
            format_connection(&refused),
            "pypi.org:443, 1.2 s, refused: another \\u{1b}name, TLS name evil\\u{7}   (egress.allow pypi.org:443)"
        );
    }

    #[test]
    fn a_table_of_hosts() {
        let mut reached = HostStatistics::default();
        let connection =
            |connection: ConnectionRecord| EventKind::Connection { attempt: 1, connection: connection.into() };
        let small = ConnectionRecord { target: "[::1]:80".parse().unwrap(), bytes_down: 12, ..sample_record() };
        let failed = ConnectionRecord { end: ConnectionEnd::Failed, bytes_up: 0, bytes_down: 0, ..sample_record() };
        [small, sample_record(), sample_record(), failed]
            .map(connection)
            .iter()
            .for_each(|kind| reached.count_event(kind));
        let denial = Denial {
            operation: DeniedOperation::Connect,
            object: "evil\u{1b}.example:443".into(),
            rule: "not allowed".into(),
            ..crate::render::question::tests::sample_denial()
        };
        let granted = Denial { resolution: DenialResolution::Granted, ..denial.clone() };
        let write = crate::render::question::tests::sample_denial();
        for denial in [denial.clone(), granted, write, denial] {
            reached.count_event(&EventKind::Denied { denial });
        }
        insta::assert_snapshot!(format_table(&reached), @r"
        HOST          CONNECTIONS  FAILED  REFUSED          UP        DOWN
        pypi.org:443            2       1        0     2.5 KiB     6.0 MiB
        [::1]:80                1       0        0     1.2 KiB        12 B
        refused: evil\u{1b}.example:443   (not allowed, 2 times)
        ");
    }

    #[test]
    fn sizes() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_536, "1.5 KiB"),
            (u64::from(u32::MAX), "3.9 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(format_size(bytes), shown);
        }
    }
}
