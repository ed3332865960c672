//! Beginnings and ends of texts, at character boundaries.

/// Returns as much of the beginning as fits in `limit_bytes`.
pub(crate) fn take_head(text: &str, limit_bytes: usize) -> &str {
    let end = (0..=limit_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

/// Returns as much of the end as fits in `limit_bytes`.
pub(crate) fn take_tail(text: &str, limit_bytes: usize) -> &str {
    let start = (text.len().saturating_sub(limit_bytes)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_whole() {
        let text = "aé€";
        let heads: Vec<_> = (0..8).map(|limit| take_head(text, limit)).collect();
        assert_eq!(heads, ["", "a", "a", "aé", "aé", "aé", "aé€", "aé€"]);
        let tails: Vec<_> = (0..8).map(|limit| take_tail(text, limit)).collect();
        assert_eq!(tails, ["", "", "", "€", "€", "é€", "aé€", "aé€"]);
    }
}
