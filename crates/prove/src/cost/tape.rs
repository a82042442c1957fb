//! Builds short recorded runs for the tests of this module. See `sample` for their use.

use crate::check::tests::frame;
use crate::history::{ConnectionState, Event, Phase, Sender, Verb, What};
use crate::run::actor::operation;

/// A recorded run that is built event by event.
#[derive(Default)]
pub struct Tape {
    pub events: Vec<Event>,
    at: u64,
}

impl Tape {
    /// Sets the time of the next events.
    pub fn at(&mut self, at: u64) -> &mut Self {
        self.at = at;
        self
    }

    pub fn client(&mut self, process: u32, method: &str) -> &mut Self {
        self.frame(process, Sender::Client, method)
    }

    pub fn broker(&mut self, process: u32, method: &str) -> &mut Self {
        self.frame(process, Sender::Broker, method)
    }

    /// Sets the reply code of the last frame.
    pub fn code(&mut self, code: u16) -> &mut Self {
        if let Some(Event { what: What::Frame(frame), .. }) = self.events.last_mut() {
            frame.code = Some(code);
        }
        self
    }

    pub fn connection(&mut self, process: u32, state: ConnectionState) -> &mut Self {
        self.push(What::Connection { process, connection: 1, state })
    }

    pub fn operation(&mut self, process: u32, verb: Verb, phase: Phase) -> &mut Self {
        self.push(What::Operation(operation(process, verb, phase)))
    }

    fn frame(&mut self, process: u32, sender: Sender, method: &str) -> &mut Self {
        self.push(What::Frame(frame(process, sender, method)))
    }

    fn push(&mut self, what: What) -> &mut Self {
        self.events.push(Event { at: self.at, what });
        self
    }
}
