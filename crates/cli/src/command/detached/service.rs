//! A detached run for its clients: they end it, attach to it, and write its input.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Signal;
use stockade_engine::InterruptSender;
use stockade_model::EventKind;
use stockade_supervisor::{
    Channel, ClientRegistry, InputKind, InputResult, Refusal, Reply, Request, RunInput, Service,
};

use super::input::{ClientInputWriter, InputGate};

/// Signals that may be requested to end a run.
const END_SIGNALS: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::KILL];

/// Service of the supervisor of a detached run. It never signals a process by number, because the
/// number may belong to another process by then.
pub struct RunService {
    /// The attached clients.
    pub clients: Arc<ClientRegistry>,
    /// Input of the run, if it has one.
    pub input: Option<Arc<RunInput>>,
    /// Decides on the input.
    pub gate: InputGate,
    /// Interrupts the run.
    pub interrupter: InterruptSender,
}

impl Service for RunService {
    fn handle_request(&self, request: Request, _: Vec<OwnedFd>, channel: Channel) -> io::Result<()> {
        match request {
            Request::End(signal) => channel.send(&self.interrupt_run(signal.unwrap_or(Signal::TERM.as_raw()))),
            Request::Attach { answers } => self.attach_client(Arc::new(channel), answers),
            _ => channel.send(&Reply::<()>::Err(Refusal::unknown_request())),
        }
    }
}

impl RunService {
    fn interrupt_run(&self, signal: i32) -> Reply<()> {
        if !END_SIGNALS.iter().any(|known| known.as_raw() == signal) {
            return Err(Refusal::because("this signal cannot end it"));
        }
        if self.interrupter.send_interrupt(signal) { Ok(()) } else { Err(Refusal::because("it is over")) }
    }

    fn attach_client(&self, channel: Arc<Channel>, answers: bool) -> io::Result<()> {
        let Some(slot) = self.clients.reserve_slot() else {
            return channel.send(&Reply::<InputKind>::Err(Refusal::because("too many clients are attached")));
        };
        let input_kind = self.input.as_ref().map_or(InputKind::Nothing, |input| input.input_kind());
        channel.send(&Reply::Ok(input_kind))?;
        let client = socket_peercred(channel.stream())?.pid.as_raw_nonzero().get().unsigned_abs();
        self.gate.record_event(EventKind::Attached { client, answers }).map_err(io::Error::other)?;
        let new_writer =
            |input: &Arc<RunInput>| ClientInputWriter::new(Arc::clone(input), Arc::clone(&channel), client);
        let mut writer = self.input.as_ref().map(new_writer);
        let served = slot.serve_client(
            &channel,
            answers,
            |size| self.input.iter().for_each(|input| input.resize_terminal(size)),
            |piece| match &mut writer {
                Some(writer) => writer.handle_piece(piece, &self.gate),
                None => InputResult::Lost("the run has no standard input".to_owned()),
            },
        );
        let unjudged_bytes = writer.map_or(0, |writer| writer.unjudged_bytes());
        self.gate.record_event(EventKind::Left { client, unjudged_bytes }).map_err(io::Error::other)?;
        served
    }
}
