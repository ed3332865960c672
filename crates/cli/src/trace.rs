//! Diagnostics: `STOCKADE_LOG` prints events on standard error as they happen, `--timings` shows
//! the duration of each step at the end. Off by default; then no subscriber is set up.

use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::prelude::*;

use crate::failure::CliError;
use crate::timings::StepTimings;

/// Starts tracing if `STOCKADE_LOG` contains a filter, e.g. `debug` or `stockade_native=trace`, or
/// if timings are recorded.
///
/// # Errors
/// [`CliError`] if the filter cannot be parsed.
pub fn start_tracing(timings: Option<&StepTimings>) -> Result<(), CliError> {
    let log = std::env::var_os("STOCKADE_LOG").filter(|filter| !filter.is_empty());
    if log.is_none() && timings.is_none() {
        return Ok(());
    }
    let unreadable = || {
        CliError::new("STOCKADE_LOG is not a valid filter")
            .with_hint("for example STOCKADE_LOG=debug or STOCKADE_LOG=stockade_engine=trace")
    };
    let filter = log.map(|filter| filter.into_string().map_err(|_| unreadable())).transpose()?;
    let filter = filter.map(|filter| EnvFilter::try_new(filter).map_err(|_| unreadable())).transpose()?;
    // Without colour, beside the command's output; with the time since the start, and with the
    // duration at the end of each step.
    let log_layer = filter.map(|filter| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_timer(tracing_subscriber::fmt::time::uptime())
            .with_span_events(FmtSpan::CLOSE)
            .with_filter(filter)
    });
    let noted = timings.map(|timings| timings.clone().with_filter(filter_fn(StepTimings::is_recorded)));
    tracing_subscriber::registry()
        .with(log_layer)
        .with(noted)
        .try_init()
        .map_err(|_| CliError::new("tracing was started twice"))
}
