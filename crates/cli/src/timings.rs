//! `--timings`: the duration of each step of a run. Collects spans of the supervisor and marks of
//! the processes inside, and shows them at the end.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_launch::TIMES_TARGET;
use stockade_model::RawText;
use stockade_sys::time_marks;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::CliError;

/// Most recorded steps: a run can ask any number of questions.
const MAX_STEPS: usize = 1000;

/// The steps recorded so far.
#[derive(Clone, Debug, Default)]
pub struct StepTimings {
    /// Start time of this program, as [`time_marks::monotonic_nanoseconds`] counts.
    start: u64,
    steps: Arc<Mutex<Vec<TimedStep>>>,
}

/// A step with its duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TimedStep {
    process: String,
    name: String,
    /// Number of enclosing steps.
    depth: usize,
    from: u64,
    to: u64,
}

impl StepTimings {
    /// Starts recording, for a program that started at `start`. Must be called before the first
    /// child process starts.
    ///
    /// # Errors
    /// [`CliError`] if there is no memory for the children's marks.
    pub fn start_recording(start: u64) -> Result<Self, CliError> {
        time_marks::reserve_page().map_err(|e| CliError::new(format!("cannot reserve memory for the timings: {e}")))?;
        let timings = Self { start, steps: Arc::default() };
        timings.record_own_step("read the command line", 0, start);
        Ok(timings)
    }

    /// Records a step of this process that has just ended.
    fn record_own_step(&self, name: &str, depth: usize, from: u64) {
        let (process, name, to) = ("front".to_owned(), name.to_owned(), time_marks::monotonic_nanoseconds());
        self.record_step(TimedStep { process, name, depth, from, to });
    }

    fn record_step(&self, step: TimedStep) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() < MAX_STEPS {
            steps.push(step);
        }
    }

    /// Returns a table for the user: milliseconds, in the order in which the steps began.
    pub fn format_table(&self) -> String {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.sort_by_key(|step| (step.from, step.depth));
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let mut out = String::from("• where the time went, in milliseconds\n      from     took  process\n");
        for TimedStep { process, name, depth, from, to } in &steps {
            let (from, took) = (ms(from.saturating_sub(self.start)), ms(to.saturating_sub(*from)));
            let name = RawText::from(name.as_str());
            let _ = writeln!(out, "  {from:8.3} {took:8.3}  {process:8} {:1$}{2}", "", depth * 2, name.to_escaped());
        }
        out
    }

    /// Returns whether a span or event is recorded.
    pub fn is_recorded(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TIMES_TARGET || (metadata.is_span() && metadata.target().starts_with("stockade"))
    }
}

/// Start time of a span.
struct SpanStart(u64);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for StepTimings {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanStart(time_marks::monotonic_nanoseconds()));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == TIMES_TARGET {
            let mut step = TimedStep::default();
            event.record(&mut step);
            self.record_step(step);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(from) = span.extensions().get::<SpanStart>().map(|began| began.0) else { return };
        let depth = span.scope().skip(1).count();
        self.record_own_step(span.name(), depth, from);
    }
}

impl Visit for TimedStep {
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
    fn spans_and_marks_keep_their_order() {
        let start = time_marks::monotonic_nanoseconds();
        let timings = StepTimings::start_recording(start).unwrap();
        let subscriber =
            tracing_subscriber::registry().with(timings.clone().with_filter(filter_fn(StepTimings::is_recorded)));
        tracing::subscriber::with_default(subscriber, || {
            let _outer = info_span!("outer").entered();
            drop(info_span!("inner").entered());
            let (from, to) = (start + 1, start + 1_500_001);
            trace!(target: TIMES_TARGET, process = "init", step = "a\u{1b}step", from, to);
        });
        let table = timings.format_table();
        let rows: Vec<&str> = table.lines().skip(2).map(|row| row.get(21..).unwrap_or_default()).collect();
        assert_eq!(
            rows,
            ["front    read the command line", "init     a\\u{1b}step", "front    outer", "front      inner"]
        );
        assert!(table.contains("    1.500  init"), "{table}");
    }
}
