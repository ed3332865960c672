//! Deliberately broken engines. Each fault sits between the core and the world
//! and falsifies what passes; the witness sees the truth and must object, or
//! the simulation proves nothing.

use stockade_engine::HeldAnswer;
use stockade_engine::core::{Input, Memo, Output, Planned, Remembered};
use stockade_engine::keys::{Key, Namespace};
use stockade_model::{
    Answer, Denial, Digest, EventKind, Grant, Level, Limit, QuestionKind, Review, Risk, Scope, Verdict,
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
    SandboxLeftStanding,
    SandboxClaimed,
    UnsandboxedKept,
    AskedOtherThanRecorded,
    RecordFailureUnheard,
    EndUnheard,
    AskedTwice,
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
    Fault::SandboxLeftStanding,
    Fault::SandboxClaimed,
    Fault::UnsandboxedKept,
    Fault::AskedOtherThanRecorded,
    Fault::RecordFailureUnheard,
    Fault::EndUnheard,
    Fault::AskedTwice,
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
pub fn input(fault: Fault, input: Input) -> Option<Input> {
    Some(match (fault, input) {
        (Fault::NoIsYes, Input::Answered { digest, answer: Answer::Denied(_), by })
        | (Fault::SilenceIsYes, Input::Answered { digest, answer: Answer::TimedOut, by }) => {
            Input::Answered { digest, answer: Answer::Approved(Scope::Once), by }
        }
        (Fault::DenyIsAllow, Input::Decided(mut ruling)) if ruling.decision.verdict == Verdict::Deny => {
            ruling.decision.verdict = Verdict::Allow;
            Input::Decided(ruling)
        }
        (Fault::AskIsAllow, Input::Decided(mut ruling)) if ruling.decision.verdict == Verdict::Ask => {
            ruling.decision.verdict = Verdict::Allow;
            ruling.questions.clear();
            Input::Decided(ruling)
        }
        (Fault::RefusalsForgotten, Input::Recalled { mut answers, approver }) => {
            for answer in &mut answers {
                answer.take_if(|known| matches!(known.answer, Answer::Denied(_)));
            }
            Input::Recalled { answers, approver }
        }
        (Fault::MemorySaysYesToAll, Input::Recalled { answers, approver }) => {
            let yes = Remembered { answer: Answer::Approved(Scope::Always), id: "apr_x".to_owned() };
            Input::Recalled { answers: answers.iter().map(|_| Some(yes.clone())).collect(), approver }
        }
        (Fault::SandboxClaimed, Input::Planned(mut planned)) => {
            if !planned.plan.profile.sandboxed {
                planned.plan.profile.sandboxed = true;
                planned.plan.level = Level::Full;
            }
            Input::Planned(planned)
        }
        (Fault::SandboxClaimed, Input::Prepared(mut report)) => {
            report.level = Level::Full;
            Input::Prepared(report)
        }
        (Fault::HeldRefusalsForgotten, Input::HeldRecalled { id, answers, approver }) => {
            let answers = answers.map(|mut answers| {
                for answer in &mut answers {
                    answer.take_if(|known| matches!(known.answer, Answer::Denied(_)));
                }
                answers
            });
            Input::HeldRecalled { id, answers, approver }
        }
        (Fault::HeldRuleUnheard, Input::Held(mut call)) => {
            call.rule = None;
            Input::Held(call)
        }
        (Fault::WarningUnheard, Input::Reviewed(mut reviewed)) => {
            soften(&mut reviewed.review, &|_| "it says".into());
            Input::Reviewed(reviewed)
        }
        // Behind the summary, for `harden`.
        (Fault::WarnedYesKept, Input::Reviewed(mut reviewed)) => {
            soften(&mut reviewed.review, &|risk| risk.name().into());
            Input::Reviewed(reviewed)
        }
        (Fault::RecordFailureUnheard, Input::RecordFailed(_))
        | (Fault::EndUnheard, Input::Ended(_))
        | (Fault::HeldWithdrawalUnheard, Input::Withdrawn(_)) => return None,
        (_, input) => input,
    })
}

/// The core hears no warning.
fn soften(review: &mut Review, summary: &dyn Fn(Risk) -> stockade_model::RawText) {
    if let Some(opinion) = review.opinion.as_mut().filter(|opinion| opinion.risk >= Risk::High) {
        opinion.summary = summary(opinion.risk);
        opinion.risk = Risk::Low;
    }
}

/// The warning that was softened is told to everybody else.
fn harden(review: &mut Review) {
    let Some(opinion) = &mut review.opinion else { return };
    if let Some(risk) = [Risk::High, Risk::Critical].into_iter().find(|risk| opinion.summary == risk.name().into()) {
        opinion.risk = risk;
        opinion.summary = "it says".into();
    }
}

/// What the world is told instead, after the core heard `heard`.
pub fn outputs(fault: Fault, heard: Option<&Input>, finished: bool, outputs: Vec<Output>) -> Vec<Output> {
    let mut out: Vec<Output> = outputs.into_iter().flat_map(|output| one(fault, output)).collect();
    match (fault, heard) {
        (Fault::ReleaseBeforeDurable, Some(Input::Prepared(_))) if out.is_empty() => out.push(Output::Release),
        (Fault::ReleaseBeforePrepared, Some(Input::Committed(_))) if out.is_empty() => out.push(Output::Release),
        (Fault::EventAfterFinish, Some(_)) if finished => {
            out.push(Output::Record(Box::new(EventKind::Failed { message: "late".to_owned() })));
        }
        (Fault::TimeUnlimited, Some(Input::Tick)) => out.retain(|output| !matches!(output, Output::Signal(_))),
        (Fault::LimitUnheard, Some(Input::Breached { .. })) => {
            out.retain(|output| !matches!(output, Output::Signal(_)));
        }
        (Fault::NoTimeIsTime, Some(Input::Answered { .. } | Input::HeldRecalled { .. })) => {
            out.retain(|output| !matches!(output, Output::Signal(_)));
        }
        (Fault::StoodStillForNobody, Some(Input::Tick)) => {
            for output in &mut out {
                if matches!(output, Output::Signal(_)) {
                    let limit = Denial::of_limit(Limit::Wall, Some(60_000), "its time ran out");
                    *output = Output::StandStill(Box::new(limit));
                }
            }
        }
        (Fault::ThinkingEndsIt, Some(Input::HeldRecalled { .. }))
            if out.iter().any(|output| matches!(output, Output::Ask(_))) =>
        {
            out.push(Output::Signal(15));
        }
        // Answers first, the record after them.
        (Fault::HeldGivenBeforeRecord, Some(_)) => {
            out.sort_by_key(|output| !matches!(output, Output::AnswerHeld { .. }));
        }
        // Refusals of the end become the yes that an open question was about.
        (Fault::HeldGivenAfterEnd, Some(Input::Interrupted(_))) => {
            for output in &mut out {
                if let Output::AnswerHeld { answer, .. } = output {
                    *answer = HeldAnswer::Granted(vec![Grant::Write("/d".into())]);
                }
            }
        }
        _ => {}
    }
    out
}

fn one(fault: Fault, output: Output) -> Vec<Output> {
    match (fault, output) {
        (Fault::ReleaseTwice, Output::Release) => vec![Output::Release, Output::Release],
        (Fault::StartNotRecorded, Output::Record(kind)) if matches!(*kind, EventKind::Starting { .. }) => vec![],
        (Fault::AnswerNotRecorded, Output::Record(kind)) if matches!(*kind, EventKind::Answered { .. }) => vec![],
        (Fault::FinishTwice, Output::Finish(outcome)) => {
            vec![Output::Finish(outcome.clone()), Output::Finish(outcome)]
        }
        (Fault::ExtraGrant, Output::Prepare { planned, hold }) => {
            vec![replan(*planned, hold, |plan| plan.grants.push(Grant::Write("/etc".into())))]
        }
        (Fault::OtherCommand, Output::Prepare { planned, hold }) => {
            vec![replan(*planned, hold, |plan| plan.argv.push("--force".into()))]
        }
        (Fault::SandboxClaimed, Output::Prepare { mut planned, hold }) if planned.plan.profile.name == "host" => {
            planned.plan.profile.sandboxed = false;
            planned.plan.level = Level::None;
            vec![Output::Prepare { planned, hold }]
        }
        (Fault::HeldForNobody, Output::Prepare { planned, .. }) => vec![Output::Prepare { planned, hold: true }],
        (Fault::HeldAnsweredTwice, Output::AnswerHeld { id, answer }) => {
            vec![Output::AnswerHeld { id, answer: answer.clone() }, Output::AnswerHeld { id, answer }]
        }
        (Fault::HeldForgotten, Output::AnswerHeld { answer: HeldAnswer::Refused, .. })
        | (Fault::QuestionLeftOpen, Output::Withdraw(_)) => vec![],
        (Fault::HeldGivenMore, Output::AnswerHeld { id, answer: HeldAnswer::Granted(mut grants) }) => {
            grants.push(Grant::Write("/etc".into()));
            vec![Output::AnswerHeld { id, answer: HeldAnswer::Granted(grants) }]
        }
        (Fault::HeldGivenDirectory, Output::AnswerHeld { id, answer: HeldAnswer::Granted(mut grants) }) => {
            for grant in &mut grants {
                if let Grant::Write(path) = grant
                    && path.starts_with("/d")
                {
                    *path = "/d".into();
                }
            }
            vec![Output::AnswerHeld { id, answer: HeldAnswer::Granted(grants) }]
        }
        (Fault::HeldGrantNotRecorded, Output::Record(kind)) if matches!(&*kind, EventKind::Granted { holds, .. } if !holds.is_empty()) =>
        {
            vec![]
        }
        (Fault::SandboxLeftStanding, Output::Discard) => vec![],
        (Fault::UnsandboxedKept, Output::Ask(question)) if question.kind == QuestionKind::Unsandboxed => {
            let key = Key { namespace: Namespace::Run, digest: question.digest.clone(), refusal: false };
            let answer = Answer::Approved(Scope::Always);
            let (subject, by, request) = (String::new(), String::new(), "req_1".parse().unwrap());
            let memo = Memo { key, answer, subject, grants: Vec::new(), request, by };
            vec![Output::Ask(question), Output::Remember(vec![memo])]
        }
        (Fault::AskedOtherThanRecorded, Output::Ask(mut question)) => {
            question.command = "true".into();
            vec![Output::Ask(question)]
        }
        (Fault::ReviewLeftOut, Output::Ask(mut question)) => {
            question.review = None;
            vec![Output::Ask(question)]
        }
        (Fault::WarnedYesKept, Output::Ask(mut question)) => {
            question.review.iter_mut().for_each(harden);
            vec![Output::Ask(question)]
        }
        (Fault::WarnedYesKept, Output::Record(mut kind)) => {
            if let EventKind::Reviewed { review, .. } = &mut *kind {
                harden(review);
            }
            vec![Output::Record(kind)]
        }
        (Fault::AskedTwice, Output::Ask(question)) => vec![Output::Ask(question.clone()), Output::Ask(question)],
        (_, output) => vec![output],
    }
}

fn replan(planned: Planned, hold: bool, change: impl FnOnce(&mut stockade_model::Plan)) -> Output {
    let mut plan = planned.plan;
    change(&mut plan);
    let identity: Digest = planned.identity;
    Output::Prepare { planned: Box::new(Planned::new(plan, identity).unwrap()), hold }
}
