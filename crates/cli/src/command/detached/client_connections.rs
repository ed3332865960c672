//! The run's side of attached clients. Each client has two threads: one reads its messages, the
//! other one writes its input. So the client that wrote some input can answer a question about it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use stockade_model::EventKind;

use super::attached_clients::{ClientRegistry, MAX_CLIENTS};
use super::input::{ClientInputWriter, InputGate, RunInput};
use super::wire::{
    ClientMessage, InputKind, InputPiece, InputResult, MAX_CLIENT_MESSAGE_BYTES, RunChannel, RunMessage,
};

/// Connection handler of a run.
pub struct RunConnectionHandler {
    clients: Arc<ClientRegistry>,
    input: Option<Arc<RunInput>>,
    gate: InputGate,
    /// Has one copy for each client, and one of its own.
    places: Arc<()>,
}

/// Slot for one more client.
pub struct ClientSlot {
    handler: Arc<RunConnectionHandler>,
    _slot_token: Arc<()>,
}

impl RunConnectionHandler {
    /// Creates the handler of a run with this input, if it has one.
    pub fn new(clients: Arc<ClientRegistry>, input: Option<Arc<RunInput>>, gate: InputGate) -> Self {
        Self { clients, input, gate, places: Arc::default() }
    }

    /// Returns the kind of the run's input.
    pub fn input_kind(&self) -> InputKind {
        self.input.as_ref().map_or(InputKind::Nothing, |input| input.input_kind())
    }

    /// Returns a slot for one more client, if there is one. Only one thread may call this.
    pub fn reserve_slot(self: &Arc<Self>) -> Option<ClientSlot> {
        let has_room = Arc::strong_count(&self.places) <= MAX_CLIENTS;
        has_room.then(|| ClientSlot { handler: Arc::clone(self), _slot_token: Arc::clone(&self.places) })
    }
}

impl ClientSlot {
    /// Serves a client, the process `client`, on threads of its own until it disconnects.
    ///
    /// # Errors
    /// [`io::Error`] if no threads are left.
    pub fn serve_client(self, line: RunChannel, client: u32, answers: bool) -> io::Result<()> {
        let attend = move || {
            if let Err(error) = self.handle_client_messages(&Arc::new(line), client, answers) {
                tracing::info!(%error, "a client sent a malformed request");
            }
        };
        thread::Builder::new().name("stockade-attached".to_owned()).spawn(attend).map(drop)
    }

    fn handle_client_messages(&self, line: &Arc<RunChannel>, pid: u32, answers: bool) -> io::Result<()> {
        self.handler.gate.record_event(EventKind::Attached { client: pid, answers }).map_err(io::Error::other)?;
        let (pieces, work) = sync_channel(1);
        let (handler, writes_to) = (Arc::clone(&self.handler), Arc::clone(line));
        let carry_out = move || handler.carry_out(&writes_to, pid, &work);
        let worker = thread::Builder::new().name("stockade-input".to_owned()).spawn(carry_out)?;
        let client = answers.then(|| self.handler.clients.add_client(line));
        let end = loop {
            match line.receive_message(MAX_CLIENT_MESSAGE_BYTES) {
                Ok(Some(ClientMessage::Answer { number, answer })) => {
                    if let Some(client) = client {
                        self.handler.clients.handle_answer(client, number, answer);
                    }
                }
                Ok(Some(ClientMessage::Size { rows, columns, again })) => {
                    self.handler.input.iter().for_each(|input| input.resize_terminal(rows, columns, again));
                }
                Ok(Some(ClientMessage::Input(piece))) => {
                    if pieces.try_send(piece).is_err() {
                        break Err(io::Error::other("it sends input faster than the run takes it"));
                    }
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        line.hang_up();
        client.inspect(|client| self.handler.clients.remove_client(*client));
        drop(pieces);
        // The worker notices the end of the connection; one that panicked has stopped.
        let _ = worker.join();
        end
    }
}

impl RunConnectionHandler {
    fn carry_out(&self, line: &Arc<RunChannel>, client: u32, work: &Receiver<InputPiece>) {
        let writer = |input: &Arc<RunInput>| ClientInputWriter::new(Arc::clone(input), Arc::clone(line), client);
        let mut writer = self.input.as_ref().map(writer);
        self.answer_all(line, &mut writer, work);
        let unjudged_bytes = writer.map_or(0, |writer| writer.unjudged_bytes());
        if let Err(error) = self.gate.record_event(EventKind::Left { client, unjudged_bytes }) {
            tracing::warn!(%error, "cannot record that a client detached");
        }
    }

    fn answer_all(&self, line: &RunChannel, writer: &mut Option<ClientInputWriter>, work: &Receiver<InputPiece>) {
        while let Ok(piece) = work.recv() {
            let fate = match writer {
                Some(writer) => writer.handle_piece(piece, &self.gate),
                None => InputResult::Lost("the run has no standard input".to_owned()),
            };
            if line.send_message(&RunMessage::Input(fate)).is_err() {
                return;
            }
        }
    }
}
