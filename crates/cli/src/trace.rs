//! `STOCKADE_LOG`: what happens inside, on standard error, for whoever looks
//! for a fault. Off unless asked for; then nothing of it is set up.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::failure::Failure;

/// Starts tracing where `STOCKADE_LOG` holds a filter, e.g. `debug` or
/// `stockade_native=trace`.
///
/// # Errors
/// When the filter cannot be read.
pub fn start() -> Result<(), Failure> {
    let Some(filter) = std::env::var_os("STOCKADE_LOG").filter(|filter| !filter.is_empty()) else { return Ok(()) };
    let unreadable = || {
        Failure::new("STOCKADE_LOG holds no filter")
            .hint("for example STOCKADE_LOG=debug or STOCKADE_LOG=stockade_engine=trace")
    };
    let filter = filter.into_string().map_err(|_| unreadable())?;
    let filter = EnvFilter::try_new(filter).map_err(|_| unreadable())?;
    // Without colour, beside the command's output; with the time since the
    // start, and at the end of each step how long it took.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_timer(tracing_subscriber::fmt::time::uptime())
        .with_span_events(FmtSpan::CLOSE)
        .try_init()
        .map_err(|_| Failure::new("tracing was started twice"))
}
