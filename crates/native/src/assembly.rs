//! The last part of the start of every attempt in a native sandbox, alone or in a persistent one: the
//! built sandbox, its broker, its egress proxy and its monitor become one attempt.

use std::sync::{Arc, Mutex};

use stockade_backend_api::{Attempt, StartError};
use stockade_model::{AttemptPlan, EnforcementReport, Grant, LayerReport, LayerState};
use tracing::debug_span;

use crate::attempt::NativeAttempt;
use crate::broker::PreparedBroker;
use crate::egress::{self, CommandEgress};
use crate::errors::{map_launch_error, map_plain_error, no_descriptor};
use crate::evidence::{HiddenWatch, TempWatch};
use crate::run_monitor::{MonitoredExtras, RunEventSink, RunMonitor, StartingMonitor};
use crate::streams::CapturedOutput;
use stockade_launch::{LaunchError, LaunchedSandbox, LaunchingSandbox};
use stockade_limits::{ControlGroup, LimitGuard};

/// An attempt whose sandbox is being built.
pub(crate) struct LaunchingAttempt<'p> {
    pub(crate) plan: &'p AttemptPlan,
    pub(crate) launching: LaunchingSandbox,
    pub(crate) broker: PreparedBroker,
    pub(crate) guard: LimitGuard,
    /// Control group to kill at the end, if no namespace ends with the attempt.
    pub(crate) group: Option<Arc<ControlGroup>>,
    pub(crate) monitor: StartingMonitor,
    pub(crate) outside: Option<[CapturedOutput; 2]>,
    pub(crate) event_sink: RunEventSink,
    /// True if calls are held for an approver.
    pub(crate) hold: bool,
    /// True if limits are raised for an approver.
    pub(crate) raises_limits: bool,
    /// True if the broker decides on each open for reading.
    pub(crate) asks_reads: bool,
}

impl LaunchingAttempt<'_> {
    /// Waits for the sandbox and connects its parts. `egress` makes its egress proxy, and
    /// `add_to_report` completes the report on what is enforced.
    pub(crate) fn finish(
        self,
        egress: impl FnOnce(&mut LaunchedSandbox) -> Result<CommandEgress, StartError>,
        add_to_report: impl FnOnce(&mut EnforcementReport, &LaunchedSandbox, &MonitoredExtras),
        extras: MonitoredExtras,
    ) -> Result<Box<dyn Attempt>, StartError> {
        let Self { plan, launching, broker, guard, group, outside, event_sink, hold, raises_limits, .. } = self;
        let mut launched = debug_span!("finish").in_scope(|| launching.finish_launch()).map_err(map_launch_error)?;
        let listener = launched.take_listener().ok_or_else(|| map_launch_error(LaunchError::Lost))?;
        let can_hold = launched.wait_killable();
        let (run_egress, lost) = egress(&mut launched)?;
        let broker = broker
            .serve_listener(listener, hold && can_hold, Some(Arc::clone(&run_egress)))
            .map_err(map_plain_error)?;
        let layer = broker_layer(broker.is_synchronous, (hold, can_hold), self.asks_reads);
        let mut enforced = launched.report().clone();
        let limits = guard.report_limits(raises_limits);
        let layers = [("limits", limits), ("broker", layer), ("network", egress::network_layer(plan))];
        enforced.layers.extend(layers.map(|(name, layer)| (name.to_owned(), layer)));
        add_to_report(&mut enforced, &launched, &extras);
        let watch = Arc::new(Mutex::new(guard.start_watch(launched.init_pid(), raises_limits)));
        let answers = broker.answer_sender();
        if plan.grants.iter().any(|grant| matches!(grant, Grant::Listen(_))) {
            answers.start_egress();
        }
        let events = event_sink.downgrade();
        let monitor = RunMonitor {
            outside,
            event_sink,
            end: rustix::io::fcntl_dupfd_cloexec(launched.end_fd(), 3).map_err(no_descriptor)?,
            hidden: launched.take_hidden_reads().map(|reads| HiddenWatch::new(reads, plan)),
            temp: launched.take_temp().map(|temp| TempWatch::new(temp, plan)),
            launched: Arc::new(Mutex::new(launched)),
            names: Some(Arc::clone(&run_egress)),
            run_egress,
            lost,
            broker,
            watch: Arc::clone(&watch),
            extras,
        };
        let launched = Arc::clone(&monitor.launched);
        let monitor = Some(self.monitor.start_monitoring(monitor)?);
        Ok(Box::new(NativeAttempt { enforced, launched, answers, group, watch, events, monitor }))
    }
}

fn broker_layer(is_synchronous: bool, holds: (bool, bool), traced: bool) -> LayerReport {
    let speed = if is_synchronous {
        "acts on behalf; hands the processor over (synchronous wake-up)"
    } else {
        "acts on behalf; the kernel has no synchronous wake-up (6.6), each trapped call costs more"
    };
    let holding = match holds {
        (true, true) => "; holds calls that lack a power",
        (true, false) => "; holds nothing: on this kernel (before 5.19) signals would interrupt every held call",
        (false, _) => "",
    };
    let tracing = if traced { "; receives every open for reading, which costs time" } else { "" };
    LayerReport { state: LayerState::Enforced, detail: format!("{speed}{holding}{tracing}") }
}
