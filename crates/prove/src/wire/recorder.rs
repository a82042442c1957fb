//! Records a run with one clock: the observations of the proxies, and the actions of the prover.
//! See `history` for the events and their file format.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::method::Method;
use super::observer::{Observer, Passed};
use super::shared::lock;
use crate::history::{ConnectionState, Event, Frame, Sender, What};

/// The recorder of a run. Clones record into the same run.
#[derive(Clone, Debug)]
pub struct Recorder {
    start: Instant,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    events: Vec<Event>,
    /// The sizes of frames. `None` if they are not recorded.
    sizes: Option<Vec<Size>>,
    broker: Option<String>,
    /// The longest heartbeat interval of each process.
    heartbeats: BTreeMap<u32, Duration>,
}

/// The size of a frame of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Time at which it was read, in microseconds since the start of the run.
    pub at: u64,
    /// The process.
    pub process: u32,
    /// The side that sent it.
    pub sender: Sender,
    /// Its size in bytes, including the frame header and the end mark.
    pub bytes: u64,
    /// Whether it is a heartbeat.
    pub heartbeat: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Starts the clock of a run.
    pub fn new() -> Self {
        Self { start: Instant::now(), record: Arc::default() }
    }

    /// Starts the clock of a run whose frame sizes are recorded: see [`Recorder::finish_sizes`].
    pub fn with_sizes() -> Self {
        let recorder = Self::new();
        lock(&recorder.record).sizes = Some(Vec::new());
        recorder
    }

    /// Returns and removes the sizes of all frames so far, in the order of time. Empty unless
    /// the recorder was created by [`Recorder::with_sizes`].
    pub fn finish_sizes(&self) -> Vec<Size> {
        lock(&self.record).sizes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records an event that happens now.
    pub fn record(&self, what: What) {
        self.push(&mut lock(&self.record), what);
    }

    /// Returns the time since the start of the run, in microseconds.
    pub fn at(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns and removes the events so far, in the order of time.
    pub fn finish(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.record).events)
    }

    /// Returns a copy of the events so far, in the order of time.
    pub fn so_far(&self) -> Vec<Event> {
        lock(&self.record).events.clone()
    }

    /// Returns the product and version of the broker from its last `connection.start`. Returns
    /// `None` before the first one.
    pub fn broker(&self) -> Option<String> {
        lock(&self.record).broker.clone()
    }

    /// Returns the longest heartbeat interval that any process negotiated. 0 without heartbeats.
    pub fn heartbeat(&self) -> Duration {
        lock(&self.record).heartbeats.values().copied().max().unwrap_or_default()
    }

    /// Returns the longest heartbeat interval that this process negotiated. 0 without
    /// heartbeats.
    pub fn heartbeat_of(&self, process: u32) -> Duration {
        lock(&self.record).heartbeats.get(&process).copied().unwrap_or_default()
    }

    /// Returns an observer that records what passes through the proxy of this process.
    pub fn observer(&self, process: u32) -> impl Observer + use<> {
        ProcessObserver { recorder: self.clone(), process: Some(process) }
    }

    /// Returns an observer for a proxy that several processes use. Each connection counts as a
    /// process.
    pub fn observer_of_connections(&self) -> impl Observer + use<> {
        ProcessObserver { recorder: self.clone(), process: None }
    }

    /// Adds an event. The time is read under the lock, so that the events are in the order of
    /// time.
    fn push(&self, record: &mut Record, what: What) {
        record.events.push(Event { at: self.at(), what });
    }
}

struct ProcessObserver {
    recorder: Recorder,
    /// `None`: each connection is a process.
    process: Option<u32>,
}

impl ProcessObserver {
    /// Returns the numbers of the process and of its connection.
    fn numbers(&self, connection: usize) -> (u32, u32) {
        let connection = numbered(connection);
        self.process.map_or((connection, 1), |process| (process, connection))
    }
}

impl Observer for ProcessObserver {
    fn method(&self, method: &Method) {
        let numbers = self.numbers(method.connection);
        let frame = What::Frame(frame(numbers, method));
        let mut record = lock(&self.recorder.record);
        if method.fields.broker.is_some() {
            record.broker.clone_from(&method.fields.broker);
        }
        if let Some(seconds) = method.fields.heartbeat {
            let longest = record.heartbeats.entry(numbers.0).or_default();
            *longest = (*longest).max(Duration::from_secs(seconds.into()));
        }
        self.recorder.push(&mut record, frame);
    }

    fn connection(&self, number: usize, state: ConnectionState) {
        let (process, connection) = self.numbers(number);
        self.recorder.record(What::Connection { process, connection, state });
    }

    fn frame(&self, frame: Passed) {
        let mut record = lock(&self.recorder.record);
        let at = self.recorder.at();
        if let Some(sizes) = &mut record.sizes {
            let bytes = u64::try_from(frame.bytes).unwrap_or(u64::MAX);
            let (process, _) = self.numbers(frame.connection);
            let (sender, heartbeat) = (frame.sender, frame.heartbeat);
            sizes.push(Size { at, process, sender, bytes, heartbeat });
        }
    }
}

fn frame((process, connection): (u32, u32), method: &Method) -> Frame {
    let fields = &method.fields;
    Frame {
        process,
        connection,
        channel: method.channel,
        sender: method.sender,
        method: method.name.clone(),
        queue: method.queue.clone(),
        code: fields.code,
        consumer: fields.consumer.clone(),
        delivery: fields.delivery,
        exclusive: fields.exclusive,
        flag: fields.flag,
        requeue: fields.requeue,
        messages: fields.messages,
        consumers: fields.consumers,
        body: fields.body.clone(),
        options: fields.options.clone(),
    }
}

fn numbered(connection: usize) -> u32 {
    u32::try_from(connection).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
