//! Deliberately broken engines. Each fault sits between the core and the world
//! and falsifies what passes; the witness sees the truth and must object, or
//! the simulation proves nothing.

use stockade_backend_api::HeldAnswer;
use stockade_engine::core::{AnswerMemo, BoundPlan, CoreInput, CoreOutput, RememberedAnswer};
use stockade_engine::keys::{MemoryKey, QuestionNamespace};
use stockade_model::{
    ApprovalAnswer, ApprovalScope, Denial, Digest, EventKind, Grant, IsolationLevel, LimitKind, PolicyVerdict,
    QuestionKind, ReviewResult, RiskLevel,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ReleaseBeforeDurable,
    ReleaseBeforePrepared,
    ReleaseTwice,
    StartNotRecorded,
    AnswerNotRecorded,
    FinishTwice,
    EventAfterFinish,
    ExtraGrant,
    OtherCommand,
    NoIsYes,
    SilenceIsYes,
    DenyIsAllow,
    AskIsAllow,
    RefusalsForgotten,
    MemorySaysYesToAll,
    SandboxLeftRunning,
    SandboxClaimed,
    UnsandboxedKept,
    QuestionDiffersFromRecord,
    RecordFailureUnheard,
    EndUnheard,
    QuestionRepeated,
    HeldForNobody,
    HeldAnsweredTwice,
    HeldForgotten,
    HeldGivenMore,
    HeldGivenDirectory,
    HeldGrantNotRecorded,
    HeldGivenBeforeRecord,
    HeldGivenAfterEnd,
    HeldRefusalsForgotten,
    HeldRuleUnheard,
    HeldWithdrawalUnheard,
    QuestionLeftOpen,
    ReviewLeftOut,
    WarningUnheard,
    WarnedYesKept,
    ThinkingEndsIt,
    TimeUnlimited,
    LimitUnheard,
    NoTimeIsTime,
    StoodStillForNobody,
}

pub const ALL: &[Fault] = &[
    Fault::ReleaseBeforeDurable,
    Fault::ReleaseBeforePrepared,
    Fault::ReleaseTwice,
    Fault::StartNotRecorded,
    Fault::AnswerNotRecorded,
    Fault::FinishTwice,
    Fault::EventAfterFinish,
    Fault::ExtraGrant,
    Fault::OtherCommand,
    Fault::NoIsYes,
    Fault::SilenceIsYes,
    Fault::DenyIsAllow,
    Fault::AskIsAllow,
    Fault::RefusalsForgotten,
    Fault::MemorySaysYesToAll,
    Fault::SandboxLeftRunning,
    Fault::SandboxClaimed,
    Fault::UnsandboxedKept,
    Fault::QuestionDiffersFromRecord,
    Fault::RecordFailureUnheard,
    Fault::EndUnheard,
    Fault::QuestionRepeated,
    Fault::HeldForNobody,
    Fault::HeldAnsweredTwice,
    Fault::HeldForgotten,
    Fault::HeldGivenMore,
    Fault::HeldGivenDirectory,
    Fault::HeldGrantNotRecorded,
    Fault::HeldGivenBeforeRecord,
    Fault::HeldGivenAfterEnd,
    Fault::HeldRefusalsForgotten,
    Fault::HeldRuleUnheard,
    Fault::HeldWithdrawalUnheard,
    Fault::QuestionLeftOpen,
    Fault::ReviewLeftOut,
    Fault::WarningUnheard,
    Fault::WarnedYesKept,
    Fault::ThinkingEndsIt,
    Fault::TimeUnlimited,
    Fault::LimitUnheard,
    Fault::NoTimeIsTime,
    Fault::StoodStillForNobody,
];

/// What the core hears instead; `None`: nothing.
pub fn input(fault: Fault, input: CoreInput) -> Option<CoreInput> {
    Some(match (fault, input) {
        (Fault::NoIsYes, CoreInput::Answered { digest, answer: ApprovalAnswer::Denied(_), by })
        | (Fault::SilenceIsYes, CoreInput::Answered { digest, answer: ApprovalAnswer::TimedOut, by }) => {
            CoreInput::Answered { digest, answer: ApprovalAnswer::Approved(ApprovalScope::Once), by }
        }
        (Fault::DenyIsAllow, CoreInput::Decided(mut ruling)) if ruling.decision.verdict == PolicyVerdict::Deny => {
            ruling.decision.verdict = PolicyVerdict::Allow;
            CoreInput::Decided(ruling)
        }
        (Fault::AskIsAllow, CoreInput::Decided(mut ruling)) if ruling.decision.verdict == PolicyVerdict::Ask => {
            ruling.decision.verdict = PolicyVerdict::Allow;
            ruling.questions.clear();
            CoreInput::Decided(ruling)
        }
        (Fault::RefusalsForgotten, CoreInput::Recalled { mut answers, approver }) => {
            for answer in &mut answers {
                answer.take_if(|known| matches!(known.answer, ApprovalAnswer::Denied(_)));
            }
            CoreInput::Recalled { answers, approver }
        }
        (Fault::MemorySaysYesToAll, CoreInput::Recalled { answers, approver }) => {
            let yes =
                RememberedAnswer { answer: ApprovalAnswer::Approved(ApprovalScope::Always), id: "apr_x".to_owned() };
            CoreInput::Recalled { answers: answers.iter().map(|_| Some(yes.clone())).collect(), approver }
        }
        (Fault::SandboxClaimed, CoreInput::Planned(mut planned)) => {
            if !planned.plan.profile.sandboxed {
                planned.plan.profile.sandboxed = true;
                planned.plan.level = IsolationLevel::Full;
            }
            CoreInput::Planned(planned)
        }
        (Fault::SandboxClaimed, CoreInput::Prepared(mut report)) => {
            report.level = IsolationLevel::Full;
            CoreInput::Prepared(report)
        }
        (Fault::HeldRefusalsForgotten, CoreInput::HeldRecalled { id, answers, approver }) => {
            let answers = answers.map(|mut answers| {
                for answer in &mut answers {
                    answer.take_if(|known| matches!(known.answer, ApprovalAnswer::Denied(_)));
                }
                answers
            });
            CoreInput::HeldRecalled { id, answers, approver }
        }
        (Fault::HeldRuleUnheard, CoreInput::Held(mut call)) => {
            call.rule = None;
            CoreInput::Held(call)
        }
        (Fault::WarningUnheard, CoreInput::Reviewed(mut reviewed)) => {
            soften(&mut reviewed.review, &|_| "it says".into());
            CoreInput::Reviewed(reviewed)
        }
        // Behind the summary, for `harden`.
        (Fault::WarnedYesKept, CoreInput::Reviewed(mut reviewed)) => {
            soften(&mut reviewed.review, &|risk| risk.to_string().into());
            CoreInput::Reviewed(reviewed)
        }
        (Fault::RecordFailureUnheard, CoreInput::RecordFailed(_))
        | (Fault::EndUnheard, CoreInput::Ended(_))
        | (Fault::HeldWithdrawalUnheard, CoreInput::Withdrawn(_)) => return None,
        (_, input) => input,
    })
}

/// The core hears no warning.
fn soften(review: &mut ReviewResult, summary: &dyn Fn(RiskLevel) -> stockade_model::RawText) {
    if let Some(opinion) = review.opinion.as_mut().filter(|opinion| opinion.risk >= RiskLevel::High) {
        opinion.summary = summary(opinion.risk);
        opinion.risk = RiskLevel::Low;
    }
}

/// The warning that was softened is told to everybody else.
fn harden(review: &mut ReviewResult) {
    let Some(opinion) = &mut review.opinion else { return };
    if let Some(risk) =
        [RiskLevel::High, RiskLevel::Critical].into_iter().find(|risk| opinion.summary == risk.to_string().into())
    {
        opinion.risk = risk;
        opinion.summary = "it says".into();
    }
}

/// What the world is told instead, after the core heard `core_input`.
pub fn outputs(
    fault: Fault,
    core_input: Option<&CoreInput>,
    finished: bool,
    outputs: Vec<CoreOutput>,
) -> Vec<CoreOutput> {
    let mut out: Vec<CoreOutput> = outputs.into_iter().flat_map(|output| one(fault, output)).collect();
    match (fault, core_input) {
        (Fault::ReleaseBeforeDurable, Some(CoreInput::Prepared(_))) if out.is_empty() => out.push(CoreOutput::Release),
        (Fault::ReleaseBeforePrepared, Some(CoreInput::Committed(_))) if out.is_empty() => {
            out.push(CoreOutput::Release)
        }
        (Fault::EventAfterFinish, Some(_)) if finished => {
            out.push(CoreOutput::Record(Box::new(EventKind::Failed { message: "late".to_owned() })));
        }
        (Fault::TimeUnlimited, Some(CoreInput::Tick)) => out.retain(|output| !matches!(output, CoreOutput::Signal(_))),
        (Fault::LimitUnheard, Some(CoreInput::Breached { .. })) => {
            out.retain(|output| !matches!(output, CoreOutput::Signal(_)));
        }
        (Fault::NoTimeIsTime, Some(CoreInput::Answered { .. } | CoreInput::HeldRecalled { .. })) => {
            out.retain(|output| !matches!(output, CoreOutput::Signal(_)));
        }
        (Fault::StoodStillForNobody, Some(CoreInput::Tick)) => {
            for output in &mut out {
                if matches!(output, CoreOutput::Signal(_)) {
                    let limit = Denial::of_limit(LimitKind::Wall, Some(60_000), "its time ran out");
                    *output = CoreOutput::StandStill(Box::new(limit));
                }
            }
        }
        (Fault::ThinkingEndsIt, Some(CoreInput::HeldRecalled { .. }))
            if out.iter().any(|output| matches!(output, CoreOutput::Ask(_))) =>
        {
            out.push(CoreOutput::Signal(15));
        }
        // Answers first, the record after them.
        (Fault::HeldGivenBeforeRecord, Some(_)) => {
            out.sort_by_key(|output| !matches!(output, CoreOutput::AnswerHeld { .. }));
        }
        // Refusals of the end become the yes that an open question was about.
        (Fault::HeldGivenAfterEnd, Some(CoreInput::Interrupted(_))) => {
            for output in &mut out {
                if let CoreOutput::AnswerHeld { answer, .. } = output {
                    *answer = HeldAnswer::Granted(vec![Grant::Write("/d".into())]);
                }
            }
        }
        _ => {}
    }
    out
}

fn one(fault: Fault, output: CoreOutput) -> Vec<CoreOutput> {
    match (fault, output) {
        (Fault::ReleaseTwice, CoreOutput::Release) => vec![CoreOutput::Release, CoreOutput::Release],
        (Fault::StartNotRecorded, CoreOutput::Record(kind)) if matches!(*kind, EventKind::Starting { .. }) => vec![],
        (Fault::AnswerNotRecorded, CoreOutput::Record(kind)) if matches!(*kind, EventKind::Answered { .. }) => vec![],
        (Fault::FinishTwice, CoreOutput::Finish(outcome)) => {
            vec![CoreOutput::Finish(outcome.clone()), CoreOutput::Finish(outcome)]
        }
        (Fault::ExtraGrant, CoreOutput::Prepare { planned, hold }) => {
            vec![replan(*planned, hold, |plan| plan.grants.push(Grant::Write("/etc".into())))]
        }
        (Fault::OtherCommand, CoreOutput::Prepare { planned, hold }) => {
            vec![replan(*planned, hold, |plan| plan.argv.push("--force".into()))]
        }
        (Fault::SandboxClaimed, CoreOutput::Prepare { mut planned, hold }) if planned.plan.profile.name == "host" => {
            planned.plan.profile.sandboxed = false;
            planned.plan.level = IsolationLevel::None;
            vec![CoreOutput::Prepare { planned, hold }]
        }
        (Fault::HeldForNobody, CoreOutput::Prepare { planned, .. }) => {
            vec![CoreOutput::Prepare { planned, hold: true }]
        }
        (Fault::HeldAnsweredTwice, CoreOutput::AnswerHeld { id, answer }) => {
            vec![CoreOutput::AnswerHeld { id, answer: answer.clone() }, CoreOutput::AnswerHeld { id, answer }]
        }
        (Fault::HeldForgotten, CoreOutput::AnswerHeld { answer: HeldAnswer::Refused, .. })
        | (Fault::QuestionLeftOpen, CoreOutput::Withdraw(_)) => vec![],
        (Fault::HeldGivenMore, CoreOutput::AnswerHeld { id, answer: HeldAnswer::Granted(mut grants) }) => {
            grants.push(Grant::Write("/etc".into()));
            vec![CoreOutput::AnswerHeld { id, answer: HeldAnswer::Granted(grants) }]
        }
        (Fault::HeldGivenDirectory, CoreOutput::AnswerHeld { id, answer: HeldAnswer::Granted(mut grants) }) => {
            for grant in &mut grants {
                if let Grant::Write(path) = grant
                    && path.starts_with("/d")
                {
                    *path = "/d".into();
                }
            }
            vec![CoreOutput::AnswerHeld { id, answer: HeldAnswer::Granted(grants) }]
        }
        (Fault::HeldGrantNotRecorded, CoreOutput::Record(kind)) if matches!(&*kind, EventKind::Granted { holds, .. } if !holds.is_empty()) =>
        {
            vec![]
        }
        (Fault::SandboxLeftRunning, CoreOutput::Discard) => vec![],
        (Fault::UnsandboxedKept, CoreOutput::Ask(question)) if question.kind == QuestionKind::Unsandboxed => {
            let key = MemoryKey { namespace: QuestionNamespace::Run, digest: question.digest.clone(), refusal: false };
            let answer = ApprovalAnswer::Approved(ApprovalScope::Always);
            let (subject, by, request) = (String::new(), String::new(), "req_1".parse().unwrap());
            let memo = AnswerMemo { key, answer, subject, grants: Vec::new(), request, by };
            vec![CoreOutput::Ask(question), CoreOutput::Remember(vec![memo])]
        }
        (Fault::QuestionDiffersFromRecord, CoreOutput::Ask(mut question)) => {
            question.command = "true".into();
            vec![CoreOutput::Ask(question)]
        }
        (Fault::ReviewLeftOut, CoreOutput::Ask(mut question)) => {
            question.review = None;
            vec![CoreOutput::Ask(question)]
        }
        (Fault::WarnedYesKept, CoreOutput::Ask(mut question)) => {
            question.review.iter_mut().for_each(harden);
            vec![CoreOutput::Ask(question)]
        }
        (Fault::WarnedYesKept, CoreOutput::Record(mut kind)) => {
            if let EventKind::Reviewed { review, .. } = &mut *kind {
                harden(review);
            }
            vec![CoreOutput::Record(kind)]
        }
        (Fault::QuestionRepeated, CoreOutput::Ask(question)) => {
            vec![CoreOutput::Ask(question.clone()), CoreOutput::Ask(question)]
        }
        (_, output) => vec![output],
    }
}

fn replan(planned: BoundPlan, hold: bool, change: impl FnOnce(&mut stockade_model::AttemptPlan)) -> CoreOutput {
    let mut plan = planned.plan;
    change(&mut plan);
    let identity: Digest = planned.identity;
    CoreOutput::Prepare { planned: Box::new(BoundPlan::new(plan, identity).unwrap()), hold }
}
