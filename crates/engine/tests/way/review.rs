//! A reviewer on the way of a question: what is sent is on record first, and
//! whatever comes of it the person is asked.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use stockade_audit::AuditLogWriter;
use stockade_backend_api::{ReviewReply, ReviewRequest, Reviewer, StdioMode};
use stockade_engine::ports::{EventRecorder, RecordError};
use stockade_engine::{exit_code, interrupt_channel};
use stockade_model::{
    ApprovalMode, ApprovalQuestion, Event, EventKind, FinalStatus, ReviewOpinion, RiskLevel, SessionId,
};

use crate::house::{Fake, House};
use crate::{YES, summarize};

/// Says what it is told to, and notes whether the record had it before.
struct Model {
    says: Result<RiskLevel, &'static str>,
    /// Answers only when the other end is gone.
    waits: Option<Mutex<Receiver<()>>>,
    log: PathBuf,
    was_recorded: Arc<Mutex<Vec<bool>>>,
}

impl Reviewer for Model {
    fn name(&self) -> String {
        "model".to_owned()
    }

    fn timeout_ms(&self) -> u64 {
        if self.waits.is_some() { 50 } else { 5_000 }
    }

    fn prepare_request(
        &self,
        question: &ApprovalQuestion,
        session: Option<&SessionId>,
    ) -> Result<ReviewRequest, String> {
        self.says?;
        let body = format!("about {}", question.digest).as_str().into();
        Ok(ReviewRequest { endpoint: "http://localhost/".to_owned(), body, session: session.cloned() })
    }

    fn send_request(&self, request: &ReviewRequest) -> ReviewReply {
        let record = std::fs::read_to_string(&self.log).unwrap();
        let body = request.body.to_str().unwrap();
        let holds = record.lines().any(|line| line.contains("\"review-sent\"") && line.contains(body));
        self.was_recorded.lock().unwrap().push(holds);
        if let Some(waits) = &self.waits {
            let _ = waits.lock().unwrap().recv();
        }
        let opinion = |risk| ReviewOpinion { risk, summary: "a summary".into(), categories: Vec::new() };
        ReviewReply { opinion: self.says.map(opinion).map_err(str::to_owned), response: None }
    }
}

/// A house with this reviewer, and what it noted.
fn house(says: Result<RiskLevel, &'static str>, waits: Option<Receiver<()>>) -> (House, Arc<Mutex<Vec<bool>>>) {
    let mut house = House::new(Fake::default(), YES);
    let was_recorded = Arc::<Mutex<Vec<bool>>>::default();
    let log = house.dir.path().join("state/audit/audit.jsonl");
    let model = Model { says, waits: waits.map(Mutex::new), log, was_recorded: Arc::clone(&was_recorded) };
    house.engine.reviewer = Some(Arc::new(model));
    (house, was_recorded)
}

fn shown(house: &House) -> String {
    let asked = house.asked.lock().unwrap();
    let review = asked[0].review.as_ref().unwrap();
    match &review.opinion {
        Some(opinion) => format!("{}, {} ways to agree", opinion.risk, asked[0].scopes_of_yes().len()),
        None => review.failure.clone().unwrap(),
    }
}

#[test]
fn requests_are_recorded_before_they_are_sent() {
    for (risk, expected_text) in
        [(RiskLevel::Low, "low, 3 ways to agree"), (RiskLevel::Critical, "critical, 1 ways to agree")]
    {
        let (house, was_recorded) = house(Ok(risk), None);
        let outcome = house.run(house.request("rm a", ApprovalMode::Untrusted));
        assert_eq!(summarize(&house, &outcome), "exited 0, ran 1, asked [run]");
        assert_eq!(*was_recorded.lock().unwrap(), [true]);
        assert_eq!(shown(&house), expected_text);
        let events = house.events();
        let about = ["review-sent", "reviewed", "answered"];
        let order: Vec<_> = events.iter().filter(|kind| about.contains(&kind.as_str())).collect();
        assert_eq!(order, about);
    }
}

/// The question is the plain one, and says why.
#[test]
fn without_an_opinion_the_person_is_asked_all_the_same() {
    let (refusing, was_recorded) = house(Err("the budget is used up"), None);
    let outcome = refusing.run(refusing.request("make", ApprovalMode::Untrusted));
    assert_eq!(summarize(&refusing, &outcome), "exited 0, ran 1, asked [run]");
    assert_eq!(shown(&refusing), "the budget is used up");
    assert!(was_recorded.lock().unwrap().is_empty() && !refusing.events().contains(&"review-sent".to_owned()));

    let (never, waits) = channel();
    let (silent, _) = house(Ok(RiskLevel::Low), Some(waits));
    let outcome = silent.run(silent.request("make", ApprovalMode::Untrusted));
    assert_eq!(summarize(&silent, &outcome), "exited 0, ran 1, asked [run]");
    assert_eq!(shown(&silent), "it did not answer in time");
    drop(never);
}

/// Keeps everything but what would be sent.
struct Unwilling(AuditLogWriter);

impl EventRecorder for Unwilling {
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError> {
        match events.iter().any(|event| matches!(event.kind, EventKind::ReviewSent { .. })) {
            true => Err(RecordError("no space".to_owned())),
            false => EventRecorder::record_events(&self.0, events),
        }
    }

    fn commit_events(&self) -> Result<(), RecordError> {
        EventRecorder::commit_events(&self.0)
    }
}

/// L6.
#[test]
fn an_unrecorded_request_is_not_sent() {
    let (mut house, was_recorded) = house(Ok(RiskLevel::Low), None);
    let log = AuditLogWriter::open(&house.dir.path().join("state/other")).unwrap();
    house.engine.recorder = Arc::new(Unwilling(log));
    let (_interrupter, interrupts) = interrupt_channel();
    let outcome =
        house.engine.run_request(house.request("make", ApprovalMode::Untrusted), StdioMode::Inherit, interrupts);
    assert_eq!((outcome.status, exit_code(&outcome)), (FinalStatus::Error, 125));
    assert!(outcome.error.unwrap().contains("audit log"));
    assert!(was_recorded.lock().unwrap().is_empty() && house.asked().is_empty());
}
