//! Rules for denials, and for effects that need consent whatever was granted. They need literal
//! evidence of destruction outside the workspace, theft, persistence, hiding and weakening. Each
//! rule examines one command, its input, or the script as a whole. A rule that is not certain
//! reports nothing, because the readers ask already.

pub(crate) mod code;
pub(crate) mod destroy;
pub(crate) mod environment;
pub(crate) mod hazards;
pub(crate) mod impact;
pub(crate) mod network;
pub(crate) mod output;
pub(crate) mod payload;
pub(crate) mod write;

use crate::classify::Classifier;
use crate::invocation::Invocation;
use crate::script::ScriptStatement;
use crate::words::{DataFlow, display_atoms};

/// Classifies commands that run text or words as commands; `None` if this is none of them.
pub(crate) fn runs_inner(classifier: &mut Classifier, invocation: &Invocation) -> Option<DataFlow> {
    match invocation.name.as_slice() {
        name if code::is_shell(name) => code::classify_shell(classifier, invocation),
        b"eval" => Some(code::classify_eval(classifier, invocation)),
        b"source" | b"." => Some(code::source(classifier, invocation)),
        b"trap" => Some(code::classify_trap(classifier, invocation)),
        b"xargs" | b"gxargs" => Some(code::classify_xargs(classifier, invocation)),
        b"su" | b"script" | b"runuser" | b"sg" => Some(code::with_command_option(classifier, invocation)),
        _ => None,
    }
}

/// Classifies one command by every rule. Returns the flow of its output.
pub(crate) fn apply_all_rules(classifier: &mut Classifier, invocation: &Invocation) -> DataFlow {
    let mut flow = DataFlow::default();
    hazards::classify_hazards(classifier, invocation);
    impact::classify_impacts(classifier, invocation);
    destroy::classify_destruction(classifier, invocation);
    write::classify_writes(classifier, invocation);
    payload::classify_payload(classifier, invocation);
    code::runs_fetched(classifier, invocation);
    flow.merge_taints(&network::classify_network(classifier, invocation));
    flow.merge_taints(&output::command_taints(classifier, invocation));
    flow
}

/// Classifies the script as a whole: effects that only several commands together show.
pub(crate) fn classify_whole(classifier: &mut Classifier, at: (usize, usize)) {
    if classifier.seen.secret && classifier.seen.sends {
        classifier.record_denial("exfiltration", "Reads a secret and reaches another host.", at);
    }
    if classifier.seen.socket && (classifier.seen.shell_reads || classifier.seen.dynamic_program) {
        classifier.record_denial("reverse-shell", "A shell takes its commands from another host.", at);
    }
}

/// Returns whether a condition is `true` or similar, so that the loop has no end.
pub(crate) fn is_endless_condition(condition: &[ScriptStatement]) -> bool {
    condition.is_empty()
        || matches!(condition, [ScriptStatement::Simple(simple)] if simple.words.first().is_some_and(|word| {
            let name = display_atoms(&word.atoms);
            matches!(name.as_slice(), b":" | b"true" | b"false" | b"[" | b"test")
                && (name != b"[" && name != b"test" || simple.words.len() <= 3)
        }))
}

/// Returns whether a function's body starts it again in the background or in a pipeline.
pub(crate) fn is_process_bomb(name: &[u8], body: &[ScriptStatement]) -> bool {
    body.iter().any(|s| is_self_multiplying(name, s))
}

fn is_self_multiplying(name: &[u8], statement: &ScriptStatement) -> bool {
    match statement {
        ScriptStatement::Background(inner, _) => has_function_call(name, inner),
        ScriptStatement::Pipeline(parts) => parts.iter().any(|p| has_function_call(name, p)),
        ScriptStatement::Sequence(parts) | ScriptStatement::Subshell(parts) | ScriptStatement::Unknown(parts, _) => {
            parts.iter().any(|p| is_self_multiplying(name, p))
        }
        ScriptStatement::Redirected(inner, _) => is_self_multiplying(name, inner),
        ScriptStatement::Loop { body, .. } | ScriptStatement::For { body, .. } => {
            body.iter().any(|p| is_self_multiplying(name, p))
        }
        _ => false,
    }
}

fn has_function_call(name: &[u8], statement: &ScriptStatement) -> bool {
    match statement {
        ScriptStatement::Simple(simple) => simple.words.first().is_some_and(|word| display_atoms(&word.atoms) == name),
        ScriptStatement::Pipeline(parts) | ScriptStatement::Sequence(parts) | ScriptStatement::Subshell(parts) => {
            parts.iter().any(|p| has_function_call(name, p))
        }
        ScriptStatement::Background(inner, _) | ScriptStatement::Redirected(inner, _) => has_function_call(name, inner),
        _ => false,
    }
}
