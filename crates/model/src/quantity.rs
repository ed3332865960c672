//! Text forms of amounts: `90s`, `8GiB`, `1.5`. Grants, options and configuration share these parsers.

/// Longest duration that is accepted as intended, in milliseconds: 365 days.
const MAX_DURATION_MS: u64 = 365 * 24 * 60 * 60 * 1000;
/// Greatest whole part of a number with decimals that is accepted as intended.
const MAX_WHOLE_NUMBER: u64 = 100_000;

const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Parses a duration: whole number and unit, `500ms`, `120s`, `10m`, `1h`, `7d`.
///
/// # Errors
/// The reason for the user, if the text is not a duration.
pub fn duration_ms(text: &str) -> Result<u64, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or("a duration is a whole number and `ms`, `s`, `m`, `h` or `d`, e.g. `120s`")?;
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(0) => Err("a duration must be greater than zero"),
        Some(ms) if ms <= MAX_DURATION_MS => Ok(ms),
        Some(_) => Err("a duration is at most `365d`"),
        None => Err("a duration is a whole number and a unit, e.g. `120s`"),
    }
}

/// Parses a number of bytes: whole number, optionally with `KiB`, `MiB`, `GiB`, `TiB`.
///
/// # Errors
/// The reason for the user, if the text is not a size.
pub fn size_bytes(text: &str) -> Result<u64, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" => 1,
        unit => SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor)
            .ok_or("a size is a whole number and `KiB`, `MiB`, `GiB` or `TiB`, e.g. `2GiB`")?,
    };
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(0) => Err("a size must be greater than zero"),
        Some(bytes) => Ok(bytes),
        None => Err("a size is a whole number and a unit, e.g. `2GiB`"),
    }
}

/// Parses a number with up to three decimals, `4` or `1.5`, as thousandths.
///
/// # Errors
/// The reason for the user, if the text is not such a number.
pub fn parse_thousandths(text: &str) -> Result<u64, &'static str> {
    const DECIMALS_ERROR: &str = "expected a number with at most three decimals, e.g. `4` or `1.5`";
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return Err(DECIMALS_ERROR);
    }
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| DECIMALS_ERROR)?;
    let whole: u64 = whole.parse().ok().filter(|n| *n <= MAX_WHOLE_NUMBER).ok_or("the number is too large")?;
    match whole * 1000 + part {
        0 => Err("the number must be greater than zero"),
        thousandths => Ok(thousandths),
    }
}

/// Parses a count.
///
/// # Errors
/// The reason for the user, if the text is not a count.
pub fn parse_count(text: &str) -> Result<u64, &'static str> {
    let digits = Some(text).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).filter(|n| *n > 0).ok_or("expected a whole number above zero")
}

/// Formats a duration, e.g. `10m`, in the largest unit that is exact.
pub(crate) fn duration_text(ms: u64) -> String {
    in_units(ms, &TIME_UNITS).unwrap_or_else(|| format!("{ms}ms"))
}

/// Formats a size, e.g. `8GiB`, in the largest unit that is exact.
pub(crate) fn size_text(bytes: u64) -> String {
    in_units(bytes, &SIZE_UNITS).unwrap_or_else(|| bytes.to_string())
}

fn in_units(value: u64, units: &[(&str, u64)]) -> Option<String> {
    let unit = units.iter().find(|(_, unit)| value >= *unit && value.is_multiple_of(*unit));
    unit.map(|(name, unit)| format!("{}{name}", value / unit))
}

/// Formats thousandths: `1.5` for 1500.
pub(crate) fn thousandths_text(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1000, value % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lines_are_read_and_shown() {
        for (text, ms) in [("500ms", 500), ("120s", 120_000), ("10m", 600_000), ("365d", MAX_DURATION_MS)] {
            assert_eq!(duration_ms(text), Ok(ms));
            assert_eq!(duration_ms(&duration_text(ms)), Ok(ms), "{text}");
        }
        for (text, bytes) in [("4096", 4096), ("1KiB", 1024), ("2GiB", 2 << 30), ("1025", 1025)] {
            assert_eq!(size_bytes(text), Ok(bytes));
            assert_eq!(size_bytes(&size_text(bytes)), Ok(bytes), "{text}");
        }
        for (text, value) in [("4", 4000), ("1.5", 1500), ("0.125", 125), ("10.050", 10_050)] {
            assert_eq!(parse_thousandths(text), Ok(value));
            assert_eq!(parse_thousandths(&thousandths_text(value)), Ok(value), "{text}");
        }
        assert_eq!((duration_text(7_200_000), size_text(8 << 30), thousandths_text(1500)).0, "2h");
        assert_eq!((size_text(8 << 30), thousandths_text(10_050)), ("8GiB".to_owned(), "10.05".to_owned()));
        assert_eq!(parse_count("2048"), Ok(2048));
    }

    #[test]
    fn unclear_input_is_refused() {
        for bad in ["", "0s", "1", "-1s", "1.5h", "366d", "1w", "99999999999999999999s", "1 s"] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "8GB", "8 GiB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(size_bytes(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "0.0", ".5", "1.", "1.2345", "1.2.3", "-1", "1e3", "100001"] {
            assert!(parse_thousandths(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "-1", "+1", "1k", "99999999999999999999"] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }
}
