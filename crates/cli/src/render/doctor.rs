//! The findings of the doctor as text.

use std::fmt::Write as _;

use stockade_model::{LayerReport, LayerState, RawText};

use super::{SgrColor, TextLayout, escape_text, write_wrapped};
use crate::command::doctor::{DoctorReport, EngineFinding, LevelFinding, ReviewerFinding};

/// Formats every layer, every level on one line with its problems below, then the best level.
pub fn format_findings(findings: &DoctorReport, style: TextLayout) -> String {
    let mut out = format!("kernel {}, uid {}\n\n", findings.kernel, findings.uid);
    for layer in &findings.layers {
        let head = format!("{:<18} {:<9} ", layer.name, layer.report.state);
        write_wrapped(&mut out, style, &head, &escape_text(&layer.report.detail));
    }
    out.push('\n');
    for found in &findings.levels {
        write_level(&mut out, found, style);
        for (name, layer) in find_weaker_layers(found, findings) {
            let detail = escape_text(&layer.detail);
            write_wrapped(&mut out, style, &format!("  {:<8} ", layer.state), &format!("{name}: {detail}"));
        }
    }
    match findings.best {
        Some(best) => {
            let _ = writeln!(out, "\nthe strongest level here: {best}");
        }
        None => {
            let none = style.paint_text(SgrColor::Red, "no level works here");
            let _ = writeln!(out, "\n{none}: nothing can be run in a sandbox");
        }
    }
    for (n, found) in findings.engines.iter().enumerate() {
        out.push_str(if n == 0 { "\n" } else { "" });
        write_engine(&mut out, found, style);
    }
    if let Some(found) = &findings.reviewer {
        write_reviewer(&mut out, found, style);
    }
    out
}

/// Formats an engine. Its own texts are untrusted.
fn write_engine(out: &mut String, found: &EngineFinding, style: TextLayout) {
    let text = match (&found.problem, &found.info.version) {
        (Some(problem), _) => format!("not used: {problem}"),
        (None, version) => {
            let rootless = if found.info.rootless { ", as an ordinary user" } else { "" };
            let runtime = found.info.runtime.as_deref().unwrap_or("a runtime of its own choice");
            let others = found.info.runtimes.iter().filter(|name| Some(*name) != found.info.runtime.as_ref()).cloned();
            let others = others.collect::<Vec<_>>().join(", ");
            let others = if others.is_empty() { others } else { format!(", or by --runtime {others}") };
            format!("{}{rootless}, with {runtime}{others}", version.as_deref().unwrap_or("of no version"))
        }
    };
    write_wrapped(out, style, &format!("sandboxes by {:<7} ", found.name), &escape_text(&text));
}

fn write_reviewer(out: &mut String, found: &ReviewerFinding, style: TextLayout) {
    out.push('\n');
    write_wrapped(out, style, "reviewer ", &format!("{} at {}", found.model, found.endpoint));
    if let Some(problem) = &found.problem {
        let _ = writeln!(out, "  {}  {problem}", style.paint_text(SgrColor::Red, "nothing can be sent"));
    }
}

/// Returns the layers that the sandbox reports as weaker, and that are not among the shown layers.
fn find_weaker_layers<'a>(
    found: &'a LevelFinding,
    findings: &'a DoctorReport,
) -> impl Iterator<Item = (&'a String, &'a LayerReport)> {
    let shown = |name: &str| findings.layers.iter().any(|layer| layer.name == name);
    let layers = found.enforced.iter().filter(|_| found.works).flat_map(|enforced| &enforced.layers);
    layers.filter(move |(name, layer)| layer.state != LayerState::Enforced && !shown(name))
}

fn write_level(out: &mut String, found: &LevelFinding, style: TextLayout) {
    let (word, color) = if found.works { ("works", SgrColor::Bold) } else { ("DOES NOT WORK", SgrColor::Red) };
    // Padded before it is painted, because colour sequences have no width.
    let word = style.paint_text(color, &format!("{word:<13}"));
    let broken: Vec<_> = found.tried.iter().filter(|trial| !trial.holds).collect();
    let came_of_it = match (found.tried.len(), broken.len()) {
        (0, _) => "no command ran in it".to_owned(),
        (all, 0) => format!("a command ran in it, and all {all} promises held"),
        (all, broken) => format!("a command ran in it, and {broken} of {all} promises did not hold"),
    };
    let _ = writeln!(out, "level {:<10} {word}  {came_of_it}", found.level.to_string());
    for trial in broken {
        let _ = writeln!(out, "  broken   {}", trial.promise);
    }
    let missing = (!found.missing.is_empty()).then(|| format!("there is no {}", found.missing.join(", no ")));
    let error = found.error.as_deref().map(|error| RawText::from(error).to_escaped());
    let because: Vec<_> = missing.into_iter().chain(error).collect();
    if !because.is_empty() {
        write_wrapped(out, style, "  because  ", &because.join(": "));
    }
    if let Some(hint) = &found.hint {
        write_wrapped(out, style, "  hint: ", &escape_text(hint));
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{EnforcementReport, IsolationLevel};

    use super::*;
    use crate::command::doctor::{LayerFinding, SandboxTrial};
    use stockade_container::ContainerEngineInfo;

    fn layer(state: LayerState, detail: &str) -> LayerReport {
        LayerReport { state, detail: detail.into() }
    }

    fn works(level: IsolationLevel) -> LevelFinding {
        let credentials = layer(LayerState::Partial, "existing paths are hidden; 2 paths are missing, and not covered");
        let landlock = layer(LayerState::Partial, "ABI 4");
        let layers = [("credentials".to_owned(), credentials), ("landlock".to_owned(), landlock)].into();
        LevelFinding {
            level,
            works: true,
            missing: Vec::new(),
            error: None,
            hint: None,
            enforced: Some(EnforcementReport { level, layers }),
            tried: vec![
                SandboxTrial { promise: "it can write its workspace", holds: true },
                SandboxTrial { promise: "it cannot write elsewhere", holds: true },
            ],
        }
    }

    fn found(user_namespace: LayerReport, levels: Vec<LevelFinding>) -> String {
        let layers = vec![
            LayerFinding { name: "user-namespace", report: user_namespace },
            LayerFinding { name: "landlock", report: layer(LayerState::Partial, "ABI 4, a write is refused") },
        ];
        let best = levels.iter().find(|found| found.works).map(|found| found.level);
        let reviewer = None;
        let engines = Vec::new();
        format_findings(
            &DoctorReport { kernel: "6.8.0".into(), uid: 1000, best, layers, levels, engines, reviewer },
            TextLayout::PLAIN,
        )
    }

    #[test]
    fn a_healthy_machine() {
        let identity = layer(LayerState::Enforced, "an identity of its own for this user");
        insta::assert_snapshot!(found(identity, vec![works(IsolationLevel::Full), works(IsolationLevel::Restricted)]), @r"
        kernel 6.8.0, uid 1000

        user-namespace     enforced  an identity of its own for this user
        landlock           partial   ABI 4, a write is refused

        level full       works          a command ran in it, and all 2 promises held
          partial  credentials: existing paths are hidden; 2 paths are missing, and not
                   covered
        level restricted works          a command ran in it, and all 2 promises held
          partial  credentials: existing paths are hidden; 2 paths are missing, and not
                   covered

        the strongest level here: full
        ");
    }

    #[test]
    fn a_machine_without_user_namespaces() {
        let full = LevelFinding {
            works: false,
            missing: vec!["user-namespace"],
            error: Some("cannot make the sandbox's process: \u{1b}No space left".into()),
            hint: Some("raise `sysctl user.max_user_namespaces`, or use `--level restricted`".into()),
            enforced: None,
            tried: Vec::new(),
            ..works(IsolationLevel::Full)
        };
        let identity = layer(LayerState::Absent, "this user has no user namespaces left");
        insta::assert_snapshot!(found(identity, vec![full, works(IsolationLevel::Restricted)]), @r"
        kernel 6.8.0, uid 1000

        user-namespace     absent    this user has no user namespaces left
        landlock           partial   ABI 4, a write is refused

        level full       DOES NOT WORK  no command ran in it
          because  there is no user-namespace: cannot make the sandbox's process:
                   \u{1b}No space left
          hint: raise `sysctl user.max_user_namespaces`, or use `--level restricted`
        level restricted works          a command ran in it, and all 2 promises held
          partial  credentials: existing paths are hidden; 2 paths are missing, and not
                   covered

        the strongest level here: restricted
        ");
    }

    #[test]
    fn container_engines() {
        let there = EngineFinding {
            name: "docker",
            info: ContainerEngineInfo {
                version: Some("20.10.24+dfsg1".into()),
                rootless: false,
                runtime: Some("runc".into()),
                runtimes: vec!["runc".into(), "runsc\u{1b}".into()],
            },
            problem: None,
        };
        let absent = EngineFinding {
            name: "podman",
            info: ContainerEngineInfo::default(),
            problem: Some("there is no socket of podman on this machine".into()),
        };
        let mut out = String::new();
        write_engine(&mut out, &there, TextLayout::PLAIN);
        write_engine(&mut out, &absent, TextLayout::PLAIN);
        insta::assert_snapshot!(out, @r"
        sandboxes by docker  20.10.24+dfsg1, with runc, or by --runtime runsc\u{1b}
        sandboxes by podman  not used: there is no socket of podman on this machine
        ");
    }

    #[test]
    fn a_reviewer() {
        let shown = |problem: Option<&str>| {
            let (model, endpoint) = ("some-model".to_owned(), "https://api.example.com/v1/messages".to_owned());
            let mut out = String::new();
            write_reviewer(
                &mut out,
                &ReviewerFinding { model, endpoint, problem: problem.map(str::to_owned) },
                TextLayout::PLAIN,
            );
            out
        };
        insta::assert_snapshot!(shown(None), @r"

        reviewer some-model at https://api.example.com/v1/messages
        ");
        insta::assert_snapshot!(shown(Some("there is no key: the variable K is not set")), @r"

        reviewer some-model at https://api.example.com/v1/messages
          nothing can be sent  there is no key: the variable K is not set
        ");
    }

    #[test]
    fn a_sandbox_that_does_not_hold() {
        let mut full = works(IsolationLevel::Full);
        full.works = false;
        full.tried[1].holds = false;
        full.hint = Some("do not rely on this level here".into());
        let identity = layer(LayerState::Enforced, "an identity of its own for this user");
        insta::assert_snapshot!(found(identity, vec![full]), @r"
        kernel 6.8.0, uid 1000

        user-namespace     enforced  an identity of its own for this user
        landlock           partial   ABI 4, a write is refused

        level full       DOES NOT WORK  a command ran in it, and 1 of 2 promises did not hold
          broken   it cannot write elsewhere
          hint: do not rely on this level here

        no level works here: nothing can be run in a sandbox
        ");
    }
}
