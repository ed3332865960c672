//! The table of impacts: what needs consent in every mode, and its harmless
//! neighbours. The rows are text here and are never run.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data must fail")]

use std::path::Path;

use stockade_model::{Assessment, Impact, RawText, Tier};
use stockade_shell::{CommandContext, assess_argv, assess_script};

fn context() -> CommandContext {
    CommandContext {
        cwd: "/home/dev/proj".into(),
        home: "/home/dev".into(),
        workspace: "/home/dev/proj".into(),
        sanitized: true,
    }
}

fn rows() -> Vec<(Impact, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/impacts.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let (impact, command) = line.split_once('\t').unwrap();
        let impact = match impact {
            "contained" => Impact::Contained,
            "workspace" => Impact::Workspace,
            "irreversible" => Impact::Irreversible,
            "outward" => Impact::Outward,
            other => panic!("unknown impact {other}"),
        };
        (impact, command.replace("\\\\", "\u{1}").replace("\\n", "\n").replace('\u{1}', "\\"))
    };
    text.lines().skip(1).map(row).collect()
}

/// The findings that the impact comes from.
fn finding_reasons(assessment: &Assessment) -> Vec<&str> {
    let telling = assessment.findings.iter().filter(|found| found.impact == assessment.impact);
    telling.map(|found| found.code.as_str()).collect()
}

#[test]
fn the_agreed_impacts_hold() {
    let rows = rows();
    let mut faults = Vec::new();
    for (impact, command) in &rows {
        let assessment = assess_script(command.as_bytes(), &context());
        if assessment.impact != *impact {
            faults.push(format!(
                "{command}: {impact:?}, answered {:?} {:?}",
                assessment.impact,
                finding_reasons(&assessment)
            ));
        }
        let has_reason = !finding_reasons(&assessment).is_empty();
        assert!(!assessment.impact.needs_consent() || has_reason, "no reason: {command}");
        assert_eq!(assessment.impact == Impact::Contained, assessment.tier == Tier::Allow, "{command}");
    }
    println!("impacts: {} of {} otherwise than agreed", faults.len(), rows.len());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn an_argument_vector_is_read_like_a_script() {
    for (words, impact) in [
        (&["git", "push", "-f"][..], Impact::Outward),
        (&["git", "push", "origin", "main"], Impact::Workspace),
        (&["sudo", "kubectl", "delete", "pod", "x"], Impact::Outward),
        (&["sh", "-c", "helm upgrade x ."], Impact::Outward),
    ] {
        let words: Vec<RawText> = words.iter().map(|word| RawText::from(*word)).collect();
        assert_eq!(assess_argv(&words, &context()).impact, impact, "{words:?}");
    }
}

/// What is too long, too deep or cut short is looked through as well.
#[test]
fn an_effect_is_not_hidden_by_bulk() {
    let deep = format!("{} git push -f origin main {}", "(".repeat(70), ")".repeat(70));
    let many = format!("{}git push -f origin main", "./a x $y\n".repeat(300));
    let long = format!("{}\ngit push -f origin main", "a ".repeat(200_000));
    let broken = "if true; then\ngit push -f origin main\n";
    for text in [deep.as_str(), &many, &long, broken] {
        let assessment = assess_script(text.as_bytes(), &context());
        assert_eq!(assessment.impact, Impact::Outward, "{text:.40}");
    }
}

#[test]
fn code_in_the_text_is_reported_as_code() {
    let messages = |command: &str| -> Vec<String> {
        assess_script(command.as_bytes(), &context()).findings.into_iter().map(|found| found.message).collect()
    };
    for command in ["python3 -c 'print(1)'", "node -e 1", "perl -ne 'print' a.txt"] {
        let finding_reasons = messages(command);
        assert!(
            finding_reasons.iter().any(|message| message == "Runs code that is given in the text."),
            "{command}: {finding_reasons:?}"
        );
        assert!(!finding_reasons.iter().any(|message| message.contains("missing")), "{command}: {finding_reasons:?}");
    }
    assert!(messages("python3 x.py").iter().any(|message| message == "Runs code that is not in the text."));
    assert!(messages("python3").iter().any(|message| message.contains("missing")));
}
