//! `stockade check`: assesses one command, or a stream of them with one per line, without running
//! it. Executes, asks and records nothing.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use serde::{Deserialize, Serialize};
use stockade_engine::ports::PolicyEngine as _;
use stockade_model::{
    Assessment, Capability, Decision, Finding, Impact, PolicyVerdict, RawText, RequestCommand, RunRequest, Tier,
};

use super::{CommandResult, configuration, output_error, print_result, read_variable};
use crate::args::CheckArgs;
use crate::failure::CliError;
use crate::resolved_args::{self, MAX_COMMAND_BYTES, ResolvedArgs};
use crate::{exit, render};

/// Longest line of `--jsonl`, in bytes: the longest command with every byte written as `\u00XX`,
/// and room for the rest.
const MAX_LINE_BYTES: usize = 6 * MAX_COMMAND_BYTES + 64 * 1024;

/// Assesses one command or a stream.
///
/// # Errors
/// [`CliError`] if the configuration cannot be used, or if a stream fails.
pub fn assess_commands(typed: CheckArgs) -> CommandResult {
    let (json, jsonl) = (typed.json, typed.jsonl);
    let request_args = ResolvedArgs::from_check_args(typed, &read_variable)?;
    let setting = configuration::load_config(&request_args.workspace)?;
    setting.require_profile(request_args.options.profile.as_deref())?;
    let request = setting.build_request(&request_args, resolved_args::request_id()?);
    let rules = setting.policy_engine();
    let decide = |request: &RunRequest| {
        let assessment = rules.assess_request(request);
        let decision = rules.apply_rules(request, &assessment).decision;
        (assessment, decision)
    };
    if jsonl {
        let workspace_is_fixed = request_args.workspace != request_args.cwd;
        let stream = RequestStream { decide: &decide, request, workspace_is_fixed };
        stream.answer_all(&mut BufReader::new(io::stdin().lock()), &mut BufWriter::new(io::stdout().lock()))?;
        return Ok(exit::SUCCESS);
    }
    let (assessment, decision) = decide(&request);
    print_result(json, &CheckResult::from_decision(&assessment, &decision), || {
        let text = resolved_args::text_of(&request.command);
        render::check::format_decision(&text, &assessment, &decision, crate::stdout_style())
    })
}

/// Function that assesses a request and decides on it.
type DecideFunction<'a> = &'a dyn Fn(&RunRequest) -> (Assessment, Decision);

/// Answer of `--json` and of each line of `--jsonl`. Public API.
#[derive(Serialize)]
struct CheckResult<'a> {
    tier: Tier,
    impact: Impact,
    decision: PolicyVerdict,
    rule: &'a str,
    reasons: Vec<&'a str>,
    findings: &'a [Finding],
    capabilities: &'a [Capability],
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a serde_json::Value>,
}

impl<'a> CheckResult<'a> {
    fn from_decision(assessment: &'a Assessment, decision: &'a Decision) -> Self {
        let mut reasons: Vec<_> = decision.reasons.iter().map(String::as_str).collect();
        if reasons.is_empty() {
            for found in assessment.findings.iter().filter(|found| found.tier == assessment.tier) {
                if !reasons.contains(&found.message.as_str()) {
                    reasons.push(&found.message);
                }
            }
        }
        Self {
            tier: assessment.tier,
            impact: assessment.impact,
            decision: decision.verdict,
            rule: &decision.rule,
            reasons,
            findings: &assessment.findings,
            capabilities: &assessment.capabilities,
            id: None,
        }
    }

    /// Answer for an unreadable line: it cannot be assessed, so the decision is to ask.
    fn for_unreadable_line(why: &'a str) -> Self {
        Self {
            tier: Tier::Ask,
            impact: Impact::Workspace,
            decision: PolicyVerdict::Ask,
            rule: "the line cannot be read",
            reasons: vec![why],
            findings: &[],
            capabilities: &[],
            id: None,
        }
    }
}

/// One line of `--jsonl`. Unknown fields are ignored; the caller may use them.
#[derive(Deserialize)]
struct JsonlRequest {
    script: Option<RawText>,
    argv: Option<Vec<RawText>>,
    cwd: Option<RawText>,
    id: Option<serde_json::Value>,
}

/// Stream of requests with one policy.
struct RequestStream<'a> {
    decide: DecideFunction<'a>,
    /// Template for the fields that a line does not set.
    request: RunRequest,
    /// True if the workspace was named; otherwise each line's cwd is its workspace.
    workspace_is_fixed: bool,
}

impl RequestStream<'_> {
    fn answer_all(&self, input: &mut BufReader<impl Read>, output: &mut impl Write) -> Result<(), CliError> {
        let mut line = Vec::new();
        while let Some(whole) = read_line(input, &mut line).map_err(input_error)? {
            let answer =
                if whole { self.answer_line(&line) } else { Err(format!("it is longer than {MAX_LINE_BYTES} bytes")) };
            let text = match answer {
                Ok(text) => text,
                Err(why) => render::json::to_json_line(&CheckResult::for_unreadable_line(&why))?,
            };
            output.write_all(text.as_bytes()).map_err(output_error)?;
            // Flushes for a caller that waits for the answer before it sends the next line.
            if !input.buffer().contains(&b'\n') {
                output.flush().map_err(output_error)?;
            }
        }
        output.flush().map_err(output_error)
    }

    fn answer_line(&self, line: &[u8]) -> Result<String, String> {
        let line: JsonlRequest =
            serde_json::from_slice(line).map_err(|e| format!("it is not the expected JSON: {e}"))?;
        let mut request = self.request.clone();
        request.command = match (line.script, line.argv) {
            (Some(script), None) => RequestCommand::Script(script),
            (None, Some(argv)) if !argv.is_empty() => RequestCommand::Argv(argv),
            (Some(_), Some(_)) => return Err("it holds both `script` and `argv`".to_owned()),
            (None, _) => return Err("it holds no `script`".to_owned()),
        };
        if let Some(cwd) = line.cwd {
            if !cwd.as_path().is_absolute() {
                return Err("its `cwd` is not absolute".to_owned());
            }
            if !self.workspace_is_fixed {
                request.workspace = cwd.clone();
            }
            request.cwd = cwd;
        }
        let (assessment, decision) = (self.decide)(&request);
        let answer = CheckResult { id: line.id.as_ref(), ..CheckResult::from_decision(&assessment, &decision) };
        render::json::to_json_line(&answer).map_err(|e| e.to_string())
    }
}

fn input_error(e: io::Error) -> CliError {
    CliError::new(format!("cannot read standard input: {e}"))
}

/// Reads the next line without its line feed. Returns `Some(false)` if it was too long; then it was
/// read to its end and dropped. Returns `None` at the end.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    input.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', line)?;
    match line.pop_if(|last| *last == b'\n') {
        Some(_) => Ok(Some(true)),
        None if line.is_empty() => Ok(None),
        None if line.len() <= MAX_LINE_BYTES => Ok(Some(true)),
        None => input.skip_until(b'\n').map(|_| Some(false)),
    }
}

#[cfg(test)]
mod tests {
    use stockade_model::{ApprovalMode, IsolationLevel, SandboxPreference};

    use super::*;

    /// Policy for the test: every command that contains `rm` is harmful.
    fn simple(request: &RunRequest) -> (Assessment, Decision) {
        let harmful = resolved_args::text_of(&request.command).to_escaped().contains("rm");
        let (tier, verdict) =
            if harmful { (Tier::Deny, PolicyVerdict::Deny) } else { (Tier::Allow, PolicyVerdict::Allow) };
        let message = format!("in {} of {}", request.cwd, request.workspace);
        let finding = Finding { code: "simple".into(), tier, impact: Impact::default(), message, span: None };
        let decision = Decision { verdict, rule: "simple".into(), reasons: Vec::new() };
        (Assessment { findings: vec![finding], ..Assessment::without_findings(tier) }, decision)
    }

    fn answers(input: &[u8]) -> Vec<serde_json::Value> {
        let request = RunRequest {
            id: "req_1".parse().unwrap(),
            session: None,
            command: RequestCommand::Script(RawText::default()),
            cwd: "/here".into(),
            workspace: "/here".into(),
            environment: Default::default(),
            profile: "workspace".into(),
            grants: Vec::new(),
            requested: Vec::new(),
            level: IsolationLevel::Full,
            approval_mode: ApprovalMode::OnFailure,
            sandbox: SandboxPreference::Auto,
            timeout_ms: None,
            limits: Default::default(),
            caller_approval: None,
        };
        let stream = RequestStream { decide: &simple, request, workspace_is_fixed: false };
        let mut output = Vec::new();
        stream.answer_all(&mut BufReader::with_capacity(16, input), &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn each_line_has_its_answer_in_order() {
        let input = br#"{"script": "ls", "cwd": "/w"}
{"script": "rm -rf /", "cwd": "/w", "id": 7}
{"argv": ["ls", "-l"]}
{"script": "ls"}"#;
        let found = answers(input);
        let tiers: Vec<_> = found.iter().map(|a| a["tier"].as_str().unwrap()).collect();
        assert_eq!(tiers, ["allow", "deny", "allow", "allow"]);
        assert_eq!(found[1]["decision"], "deny");
        assert_eq!(found[1]["id"], 7);
        assert_eq!(found[0]["reasons"][0], "in /w of /w");
        assert_eq!(found[3]["reasons"][0], "in /here of /here");
    }

    #[test]
    fn a_line_that_cannot_be_read_is_asked_about_and_hides_nothing() {
        let bad: [&[u8]; 9] = [
            b"",
            b"not json",
            b"[]",
            b"{}",
            br#"{"script": 3}"#,
            br#"{"script": "a", "script": "b"}"#,
            br#"{"script": "a", "argv": ["b"]}"#,
            br#"{"script": "ls", "cwd": "relative"}"#,
            b"{\"script\": \"\xff\"}",
        ];
        let mut input = bad.join(&b'\n');
        input.extend_from_slice(b"\n{\"script\": \"rm x\"}\n");
        let found = answers(&input);
        assert_eq!(found.len(), bad.len() + 1);
        for answer in &found[..bad.len()] {
            assert_eq!((answer["tier"].as_str(), answer["decision"].as_str()), (Some("ask"), Some("ask")), "{answer}");
            assert!(answer["reasons"][0].is_string());
        }
        assert_eq!(found[bad.len()]["tier"], "deny");
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut input = vec![b'x'; MAX_LINE_BYTES + 1];
        input.extend_from_slice(b"\n{\"script\": \"ls\"}\n");
        let found = answers(&input);
        assert_eq!(found.len(), 2);
        assert!(found[0]["reasons"][0].as_str().unwrap().contains("longer than"));
        assert_eq!(found[1]["tier"], "allow");
    }
}
