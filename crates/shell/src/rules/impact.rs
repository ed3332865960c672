//! Effects that no sandbox contains or that cannot be undone, by the table of the crate `effects`.
//! It must not depend on the approver.

use stockade_effects::{ProgramCall, ProgramWord, may_have_effect};
use stockade_model::Impact;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::knowledge::lists;
use crate::script::{DynamicValue, WordAtom};
use crate::words::ExpandedArgument;

/// Returns the impact of a denied use.
pub(crate) fn of_denial(code: &str) -> Impact {
    if lists::OUTWARD_DENIALS.contains(&code) {
        Impact::Outward
    } else if lists::IRREVERSIBLE_DENIALS.contains(&code) {
        Impact::Irreversible
    } else {
        Impact::Workspace
    }
}

/// Records the effect with this code.
pub(crate) fn record_impact(classifier: &mut Classifier, code: &str, at: (usize, usize)) {
    let (impact, message) = stockade_effects::code_impact(code);
    classifier.record_effect(impact, code, message, at);
}

/// Classifies a command by the table.
pub(super) fn classify_impacts(classifier: &mut Classifier, invocation: &Invocation) {
    if matches!(invocation.name.as_slice(), b"export" | b"declare" | b"typeset") {
        for argument in &invocation.arguments {
            let text = argument.display_bytes();
            if let Some(split) = text.iter().position(|b| *b == b'=') {
                classify_variable(classifier, &text[..split], &argument.skip_atoms(split + 1), invocation.span);
            }
        }
    }
    if !may_have_effect(&invocation.name) {
        return;
    }
    let words = invocation.arguments.iter().zip(invocation.known_texts()).map(|(argument, text)| ProgramWord {
        text,
        is_literal: argument.literal_value().is_some(),
        starts_unknown: argument.starts_unknown(),
        is_one_word: is_one_word(argument),
    });
    let input = invocation.stdin.literal.as_deref();
    let (codes, is_unknown) = ProgramCall::new(&invocation.name, words, input).find_effects();
    for code in codes {
        record_impact(classifier, code, invocation.span);
        classifier.effects.insert((code, invocation.name.clone()));
    }
    if is_unknown {
        record_impact(classifier, "unknown-action", invocation.span);
    }
}

/// Classifies a variable with its value.
pub(crate) fn classify_variable(
    classifier: &mut Classifier,
    name: &[u8],
    value: &ExpandedArgument,
    at: (usize, usize),
) {
    if let Some(code) = stockade_effects::variable_effect(name, &value.display_bytes()) {
        record_impact(classifier, code, at);
    }
}

/// Returns whether the shell makes exactly one word of an argument.
fn is_one_word(argument: &ExpandedArgument) -> bool {
    argument.atoms.iter().all(|atom| match atom {
        WordAtom::Byte { .. } => true,
        WordAtom::Dynamic(DynamicValue::Variable { quoted, .. } | DynamicValue::Nested { quoted, .. }) => *quoted,
        WordAtom::Dynamic(_) => false,
    })
}
