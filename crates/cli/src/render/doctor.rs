//! What the machine can enforce, as text.

use std::fmt::Write as _;

use stockade_model::{LayerState, RawText};

use super::{Color, Style, wrap};
use crate::command::doctor::{Findings, LevelFinding};

/// Every level with its layers and what was tried, then the best.
pub fn findings(findings: &Findings, style: Style) -> String {
    let mut out = format!("kernel {}, uid {}\n", findings.kernel, findings.uid);
    for found in &findings.levels {
        level(&mut out, found, style);
    }
    match findings.best {
        Some(best) => {
            let _ = writeln!(out, "\nthe strongest level here: {best}");
        }
        None => {
            let none = style.paint(Color::Red, "no level works here");
            let _ = writeln!(out, "\n{none}: nothing can be run in a sandbox");
        }
    }
    out
}

fn level(out: &mut String, found: &LevelFinding, style: Style) {
    let (word, color) = if found.works { ("works", Color::Bold) } else { ("DOES NOT WORK", Color::Red) };
    let _ = writeln!(out, "\nlevel {}: {}", found.level, style.paint(color, word));
    if let Some(error) = &found.error {
        wrap(out, style, "  because  ", &RawText::from(error.as_str()).escaped());
    }
    if let Some(hint) = &found.hint {
        wrap(out, style, "  hint: ", &RawText::from(hint.as_str()).escaped());
    }
    let layers = found.enforced.iter().flat_map(|enforced| &enforced.layers);
    for (name, layer) in layers {
        let head = format!("  {name:<18} {:<9} ", state(layer.state));
        wrap(out, style, &head, &RawText::from(layer.detail.as_str()).escaped());
    }
    for trial in &found.tried {
        let _ = writeln!(out, "  tried: {:<36} {}", trial.promise, if trial.holds { "yes" } else { "NO" });
    }
}

fn state(state: LayerState) -> &'static str {
    match state {
        LayerState::Enforced => "enforced",
        LayerState::Partial => "partial",
        LayerState::Absent => "absent",
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{EnforcementReport, LayerReport, Level};

    use super::*;
    use crate::command::doctor::Trial;

    #[test]
    fn what_was_found() {
        let layer = |state, detail: &str| LayerReport { state, detail: detail.into() };
        let enforced = EnforcementReport {
            level: Level::Restricted,
            layers: [
                ("landlock".to_owned(), layer(LayerState::Enforced, "ABI 7")),
                ("seccomp".to_owned(), layer(LayerState::Partial, "without wait-killable questions (kernel 5.19)")),
            ]
            .into(),
        };
        let tried = vec![
            Trial { promise: "it can write its workspace", holds: true },
            Trial { promise: "it cannot write elsewhere", holds: true },
        ];
        let mut value = Findings {
            kernel: "6.1.0".into(),
            uid: 1000,
            best: Some(Level::Restricted),
            levels: vec![
                LevelFinding {
                    level: Level::Full,
                    works: false,
                    error: Some("user namespaces are switched off".into()),
                    hint: Some("run with --level restricted".into()),
                    enforced: None,
                    tried: Vec::new(),
                },
                LevelFinding {
                    level: Level::Restricted,
                    works: true,
                    error: None,
                    hint: None,
                    enforced: Some(enforced),
                    tried,
                },
            ],
        };
        let mut shown = findings(&value, Style::PLAIN);
        value.levels.clear();
        value.best = None;
        shown += &findings(&value, Style::PLAIN);
        insta::assert_snapshot!(shown, @r"
        kernel 6.1.0, uid 1000

        level full: DOES NOT WORK
          because  user namespaces are switched off
          hint: run with --level restricted

        level restricted: works
          landlock           enforced  ABI 7
          seccomp            partial   without wait-killable questions (kernel 5.19)
          tried: it can write its workspace           yes
          tried: it cannot write elsewhere            yes

        the strongest level here: restricted
        kernel 6.1.0, uid 1000

        no level works here: nothing can be run in a sandbox
        ");
    }
}
