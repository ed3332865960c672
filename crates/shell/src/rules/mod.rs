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

use crate::invocation::Invocation;
use crate::judge::Judge;
use crate::script::Statement;
use crate::words::{Argument, Flow};

/// Classifies commands that run text or words as commands; `None` if this is none of them.
pub(crate) fn runs_inner(judge: &mut Judge, invocation: &Invocation) -> Option<Flow> {
    match invocation.name.as_slice() {
        name if code::is_shell(name) => code::shell(judge, invocation),
        b"eval" => Some(code::eval(judge, invocation)),
        b"source" | b"." => Some(code::source(judge, invocation)),
        b"trap" => Some(code::trap(judge, invocation)),
        b"xargs" | b"gxargs" => Some(code::xargs(judge, invocation)),
        b"su" | b"script" | b"runuser" | b"sg" => Some(code::with_command_option(judge, invocation)),
        _ => None,
    }
}

/// Classifies one command by every rule. Returns the flow of its output.
pub(crate) fn judge(judge: &mut Judge, invocation: &Invocation) -> Flow {
    let mut flow = Flow::default();
    hazards::judge(judge, invocation);
    impact::judge(judge, invocation);
    destroy::judge(judge, invocation);
    write::judge(judge, invocation);
    payload::judge(judge, invocation);
    code::runs_fetched(judge, invocation);
    flow.join(&network::judge(judge, invocation));
    flow.join(&output::taints(judge, invocation));
    flow
}

/// Classifies the script as a whole: effects that only several commands together show.
pub(crate) fn judge_whole(judge: &mut Judge, at: (usize, usize)) {
    if judge.seen.secret && judge.seen.sends {
        judge.deny("exfiltration", "Reads a secret and reaches another host.", at);
    }
    if judge.seen.socket && (judge.seen.shell_reads || judge.seen.dynamic_program) {
        judge.deny("reverse-shell", "A shell takes its commands from another host.", at);
    }
}

/// Returns whether a condition is `true` or similar, so that the loop has no end.
pub(crate) fn is_endless_condition(condition: &[Statement]) -> bool {
    condition.is_empty()
        || matches!(condition, [Statement::Simple(simple)] if simple.words.first().is_some_and(|word| {
            let name = Argument { atoms: word.atoms.clone(), span: word.span, flow: Flow::default() }.shown();
            matches!(name.as_slice(), b":" | b"true" | b"false" | b"[" | b"test")
                && (name != b"[" && name != b"test" || simple.words.len() <= 3)
        }))
}

/// Returns whether a function's body starts it again in the background or in a pipeline.
pub(crate) fn is_process_bomb(name: &[u8], body: &[Statement]) -> bool {
    body.iter().any(|s| multiplies(name, s))
}

fn multiplies(name: &[u8], statement: &Statement) -> bool {
    match statement {
        Statement::Background(inner, _) => calls(name, inner),
        Statement::Pipeline(parts) => parts.iter().any(|p| calls(name, p)),
        Statement::Sequence(parts) | Statement::Subshell(parts) | Statement::Unknown(parts, _) => {
            parts.iter().any(|p| multiplies(name, p))
        }
        Statement::Redirected(inner, _) => multiplies(name, inner),
        Statement::Loop { body, .. } | Statement::For { body, .. } => body.iter().any(|p| multiplies(name, p)),
        _ => false,
    }
}

fn calls(name: &[u8], statement: &Statement) -> bool {
    match statement {
        Statement::Simple(simple) => simple.words.first().is_some_and(|word| {
            Argument { atoms: word.atoms.clone(), span: word.span, flow: Flow::default() }.shown() == name
        }),
        Statement::Pipeline(parts) | Statement::Sequence(parts) | Statement::Subshell(parts) => {
            parts.iter().any(|p| calls(name, p))
        }
        Statement::Background(inner, _) | Statement::Redirected(inner, _) => calls(name, inner),
        _ => false,
    }
}
