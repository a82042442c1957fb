//! The options of a run, and the history with them. See `workload` for their use.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::history::{
    Event, Faults, Header, History, Phase, Played, Rules, VERSION, Variables, Verb, What,
};
use crate::wire::Recorder;

/// How the prover runs the implementation.
#[derive(Clone, Debug)]
pub enum Way {
    /// Command that starts a driver.
    Driver(String),
    /// Command that runs another command under the lock, with the placeholders `{lock}`,
    /// `{wait}` and `{work}`. The variables describe the grant.
    Exec(String, Variables),
}

impl Way {
    /// Returns the command, which names the implementation.
    pub fn command(&self) -> &str {
        match self {
            Self::Driver(command) | Self::Exec(command, _) => command,
        }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The implementation.
    pub way: Way,
    /// Driver of a second implementation, which every other client process runs.
    pub second_driver: Option<String>,
    /// Driver that resizes the lock if the implementation does not support resize.
    pub administrator: String,
    /// URL of the broker. `None` if no broker is observed.
    pub url: Option<Url>,
    /// The protocol of the implementation.
    pub rules: Rules,
    /// The name of the lock. No other program may use it.
    pub lock: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the workload.
    pub duration: Duration,
    /// Number of client processes.
    pub clients: u32,
    /// Maximum number of slots. The workload resizes between 1 and this number.
    pub slots: u32,
    /// Probabilities of faults.
    pub faults: Faults,
    /// Maximum time between two resizes. Zero: the lock is not resized.
    pub resize_within: Duration,
    /// Path of this program, which provides the witness and the straw clients.
    pub program: PathBuf,
}

impl RunOptions {
    /// Returns the implementation that the client process with this number runs, from 0.
    pub(super) fn way_of(&self, number: u32) -> Way {
        match &self.second_driver {
            Some(driver) if number % 2 == 1 => Way::Driver(driver.clone()),
            _ => self.way.clone(),
        }
    }

    /// Returns the history with these events.
    pub(super) fn history(&self, recorder: &Recorder, events: Vec<Event>) -> History {
        let mut header = self.header(recorder.broker().unwrap_or_default(), recorder.heartbeat());
        if !events.iter().any(is_resized) {
            // No operation created the lock, so it has its slots from the beginning.
            header.slots = self.slots;
        }
        History { header, events }
    }

    /// Returns the header of a run's history.
    pub(super) fn header(&self, broker: String, heartbeat: Duration) -> Header {
        Header {
            version: VERSION,
            implementation: self.way.command().to_owned(),
            broker,
            protocol: self.rules,
            lock: self.lock.clone(),
            slots: 0,
            seed: self.seed,
            heartbeat_ms: u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX),
            played: Some(self.played()),
        }
    }

    /// Returns the record of these options.
    pub fn played(&self) -> Played {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Played {
            exec: match &self.way {
                Way::Driver(_) => None,
                Way::Exec(_, variables) => Some(variables.clone()),
            },
            second_driver: self.second_driver.clone(),
            administrator: self.administrator.clone(),
            duration_ms: millis(self.duration),
            clients: self.clients,
            slots: self.slots,
            faults: self.faults,
            resize_within_ms: millis(self.resize_within),
        }
    }
}

/// Returns whether the event is a completed resize.
fn is_resized(event: &Event) -> bool {
    matches!(&event.what, What::Operation(one) if (one.verb, one.phase) == (Verb::Resize, Phase::Ok))
}
