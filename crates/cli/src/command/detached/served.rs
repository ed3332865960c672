//! The run's side of attached clients. Each client has two threads: one reads its messages, the
//! other one writes its input. So the client that wrote some input can answer a question about it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use stockade_model::EventKind;

use super::clients::{CLIENTS, Clients};
use super::input::{Gate, Input, Writer};
use super::wire::{Fate, Intake, Line, Piece, SAID_BYTES, Said, Told};

/// Connection handler of a run.
pub struct Desk {
    clients: Arc<Clients>,
    input: Option<Arc<Input>>,
    gate: Gate,
    /// Has one copy for each client, and one of its own.
    places: Arc<()>,
}

/// Slot for one more client.
pub struct Place {
    desk: Arc<Desk>,
    _taken: Arc<()>,
}

impl Desk {
    /// Creates the handler of a run with this input, if it has one.
    pub fn new(clients: Arc<Clients>, input: Option<Arc<Input>>, gate: Gate) -> Self {
        Self { clients, input, gate, places: Arc::default() }
    }

    /// Returns the kind of the run's input.
    pub fn intake(&self) -> Intake {
        self.input.as_ref().map_or(Intake::Nothing, |input| input.intake())
    }

    /// Returns a slot for one more client, if there is one. Only one thread may call this.
    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let has_room = Arc::strong_count(&self.places) <= CLIENTS;
        has_room.then(|| Place { desk: Arc::clone(self), _taken: Arc::clone(&self.places) })
    }
}

impl Place {
    /// Serves a client, the process `client`, on threads of its own until it disconnects.
    ///
    /// # Errors
    /// [`io::Error`] if no threads are left.
    pub fn attend(self, line: Line, client: u32, answers: bool) -> io::Result<()> {
        let attend = move || {
            if let Err(error) = self.converse(&Arc::new(line), client, answers) {
                tracing::info!(%error, "a client was not understood");
            }
        };
        thread::Builder::new().name("stockade-attached".to_owned()).spawn(attend).map(drop)
    }

    fn converse(&self, line: &Arc<Line>, pid: u32, answers: bool) -> io::Result<()> {
        self.desk.gate.note(EventKind::Attached { client: pid, answers }).map_err(io::Error::other)?;
        let (pieces, work) = sync_channel(1);
        let (desk, writes_to) = (Arc::clone(&self.desk), Arc::clone(line));
        let carry_out = move || desk.carry_out(&writes_to, pid, &work);
        let worker = thread::Builder::new().name("stockade-input".to_owned()).spawn(carry_out)?;
        let client = answers.then(|| self.desk.clients.join(line));
        let end = loop {
            match line.receive(SAID_BYTES) {
                Ok(Some(Said::Answer { number, answer })) => {
                    if let Some(client) = client {
                        self.desk.clients.answer(client, number, answer);
                    }
                }
                Ok(Some(Said::Size { rows, columns, again })) => {
                    self.desk.input.iter().for_each(|input| input.resize(rows, columns, again));
                }
                Ok(Some(Said::Input(piece))) => {
                    if pieces.try_send(piece).is_err() {
                        break Err(io::Error::other("it does not wait for the fate of its input"));
                    }
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        line.hang_up();
        client.inspect(|client| self.desk.clients.leave(*client));
        drop(pieces);
        // The worker notices the end of the connection; one that panicked has stopped.
        let _ = worker.join();
        end
    }
}

impl Desk {
    fn carry_out(&self, line: &Arc<Line>, client: u32, work: &Receiver<Piece>) {
        let writer = |input: &Arc<Input>| Writer::new(Arc::clone(input), Arc::clone(line), client);
        let mut writer = self.input.as_ref().map(writer);
        self.answer_all(line, &mut writer, work);
        let unjudged_bytes = writer.map_or(0, |writer| writer.unjudged_bytes());
        if let Err(error) = self.gate.note(EventKind::Left { client, unjudged_bytes }) {
            tracing::warn!(%error, "that a client left is not on record");
        }
    }

    fn answer_all(&self, line: &Line, writer: &mut Option<Writer>, work: &Receiver<Piece>) {
        while let Ok(piece) = work.recv() {
            let fate = match writer {
                Some(writer) => writer.take(piece, &self.gate),
                None => Fate::Lost("the run has no standard input".to_owned()),
            };
            if line.send(&Told::Input(fate)).is_err() {
                return;
            }
        }
    }
}
