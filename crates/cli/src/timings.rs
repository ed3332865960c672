//! `--timings`: the duration of each step of a run. Collects spans of the supervisor and marks of
//! the processes inside, and shows them at the end.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_model::RawText;
use stockade_native::launch::TIMES_TARGET;
use stockade_sys::marks;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;

/// Most recorded steps: a run can ask any number of questions.
const STEPS_MAX: usize = 1000;

/// The steps recorded so far.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// Start time of this program, as [`marks::now`] counts.
    start: u64,
    steps: Arc<Mutex<Vec<Step>>>,
}

/// A step with its duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    process: String,
    name: String,
    /// Number of enclosing steps.
    depth: usize,
    from: u64,
    to: u64,
}

impl Timings {
    /// Starts recording, for a program that started at `start`. Must be called before the first
    /// child process starts.
    ///
    /// # Errors
    /// [`Failure`] if there is no memory for the children's marks.
    pub fn begin(start: u64) -> Result<Self, Failure> {
        marks::reserve().map_err(|e| Failure::new(format!("cannot reserve memory for the timings: {e}")))?;
        let timings = Self { start, steps: Arc::default() };
        timings.note(Step {
            process: "front".to_owned(),
            name: "read the command line".to_owned(),
            depth: 0,
            from: start,
            to: marks::now(),
        });
        Ok(timings)
    }

    fn note(&self, step: Step) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() < STEPS_MAX {
            steps.push(step);
        }
    }

    /// Returns a table for the user: milliseconds, in the order in which the steps began.
    pub fn table(&self) -> String {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.sort_by_key(|step| (step.from, step.depth));
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let mut out = String::from("• where the time went, in milliseconds\n      from     took  process\n");
        for Step { process, name, depth, from, to } in &steps {
            let (from, took) = (ms(from.saturating_sub(self.start)), ms(to.saturating_sub(*from)));
            let name = RawText::from(name.as_str());
            let _ = writeln!(out, "  {from:8.3} {took:8.3}  {process:8} {:1$}{2}", "", depth * 2, name.escaped());
        }
        out
    }

    /// Returns whether a span or event is recorded.
    pub fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TIMES_TARGET || (metadata.is_span() && metadata.target().starts_with("stockade"))
    }
}

/// Start time of a span.
struct Began(u64);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Timings {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Began(marks::now()));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == TIMES_TARGET {
            let mut step = Step::default();
            event.record(&mut step);
            self.note(step);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(from) = span.extensions().get::<Began>().map(|began| began.0) else { return };
        let depth = span.scope().skip(1).count();
        let name = span.name().to_owned();
        self.note(Step { process: "front".to_owned(), name, depth, from, to: marks::now() });
    }
}

impl Visit for Step {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "from" => self.from = value,
            "to" => self.to = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "process" => value.clone_into(&mut self.process),
            "step" => value.clone_into(&mut self.name),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{info_span, trace};
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::prelude::*;

    #[test]
    fn spans_and_marks_stand_in_their_order() {
        let start = marks::now();
        let timings = Timings::begin(start).unwrap();
        let subscriber = tracing_subscriber::registry().with(timings.clone().with_filter(filter_fn(Timings::wants)));
        tracing::subscriber::with_default(subscriber, || {
            let _outer = info_span!("outer").entered();
            drop(info_span!("inner").entered());
            let (from, to) = (start + 1, start + 1_500_001);
            trace!(target: TIMES_TARGET, process = "init", step = "a\u{1b}step", from, to);
        });
        let table = timings.table();
        let rows: Vec<&str> = table.lines().skip(2).map(|row| row.get(21..).unwrap_or_default()).collect();
        assert_eq!(
            rows,
            ["front    read the command line", "init     a\\u{1b}step", "front    outer", "front      inner"]
        );
        assert!(table.contains("    1.500  init"), "{table}");
    }
}
