//! Connections as text: each for the record, and at the end of a run what was
//! reached.

use stockade_model::{AttemptRecord, ConnectionEnd, ConnectionRecord, HostUse, RawText};

use super::{Style, counted, time, wrap};

/// Hosts that are shown before the rest is counted.
const HOSTS_SHOWN: usize = 12;

/// One connection on one line: `pip to pypi.org:443 (151.101.0.223), 1.2 KiB up,
/// 3 MiB down, 1.2 s, closed   (egress.allow pypi.org:443)`.
pub fn connection(record: &ConnectionRecord) -> String {
    let program = record.program.as_ref().map(|program| format!("{} to ", base_name(program))).unwrap_or_default();
    let mut text = format!("{program}{}", record.target);
    if let Some(address) = record.address.filter(|address| record.target.host != stockade_model::Host::of(*address)) {
        text += &format!(" ({address})");
    }
    if record.bytes_up > 0 || record.bytes_down > 0 {
        text += &format!(", {} up, {} down", size(record.bytes_up), size(record.bytes_down));
    }
    text += &format!(", {}, {}", time(record.duration_ms), end(record.end));
    if let Some(why) = &record.why {
        text += &format!(": {}", RawText::from(why.as_str()).escaped());
    }
    if let Some(name) = record.tls_name.as_ref().filter(|name| name.as_bytes() != host_bytes(record)) {
        text += &format!(", TLS name {}", name.escaped());
    }
    format!("{text}   ({})", RawText::from(record.rule.as_str()).escaped())
}

fn host_bytes(record: &ConnectionRecord) -> &[u8] {
    record.target.host.name().map_or(&[], |name| name.as_str().as_bytes())
}

fn base_name(program: &RawText) -> String {
    program.as_path().file_name().map_or_else(|| program.escaped(), |name| RawText::from(name).escaped())
}

/// How it ended, as the record writes it.
fn end(end: ConnectionEnd) -> &'static str {
    match end {
        ConnectionEnd::Closed => "closed",
        ConnectionEnd::Reset => "reset",
        ConnectionEnd::Failed => "failed",
        ConnectionEnd::Refused => "refused",
        ConnectionEnd::RunEnded => "ended with the run",
    }
}

/// The line that says what the last attempt reached; nothing where it was
/// nothing.
pub fn hosts_used(out: &mut String, attempt: &AttemptRecord, style: Style) {
    let reached: Vec<&HostUse> = attempt.connections.iter().filter(|known| known.connections > 0).collect();
    if reached.is_empty() {
        return;
    }
    let mut shown: Vec<String> = reached.iter().take(HOSTS_SHOWN).map(|known| one_host(known)).collect();
    if reached.len() > HOSTS_SHOWN {
        shown.push(format!("and {} more", reached.len() - HOSTS_SHOWN));
    }
    wrap(out, style, "• ", &format!("{} used: {}", counted(reached.len(), "host"), shown.join(", ")));
}

fn one_host(known: &HostUse) -> String {
    let times = if known.connections > 1 { format!("{} times, ", known.connections) } else { String::new() };
    format!("{} ({times}{} up, {} down)", known.target, size(known.bytes_up), size(known.bytes_down))
}

/// A number of bytes a person can read: `12 B`, `1.2 KiB`, `3.0 GiB`.
pub fn size(bytes: u64) -> String {
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

    pub(crate) fn record() -> ConnectionRecord {
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
            connection(&record()),
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
            ..record()
        };
        assert_eq!(
            connection(&refused),
            "pypi.org:443, 1.2 s, refused: another \\u{1b}name, TLS name evil\\u{7}   (egress.allow pypi.org:443)"
        );
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
            assert_eq!(size(bytes), shown);
        }
    }
}
