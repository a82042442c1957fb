//! A recorded run: requests to the processes and their answers, AMQP methods between the
//! processes and the broker, and injected faults. One program stamps all events with one
//! monotonic clock, so they are totally ordered. See `file` for the file format, `played` for the
//! options of a run, and `check` for how a history is judged.

mod file;
mod played;

use lockkeeper_plan::naming::{LockName, NameError, Profile, Protocol, QueueType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use file::HistoryError;
pub use played::{Faults, Played, Variables};

/// Version of the file format that this program writes and reads.
pub const VERSION: u32 = 1;

/// A recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The tested implementation, and the conditions of the run.
    pub header: Header,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// The first line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format, [`VERSION`].
    pub version: u32,
    /// The implementation, as named by the user: usually its command line.
    pub implementation: String,
    /// Product and version of the broker, from `connection.start`. Empty without a broker.
    pub broker: String,
    /// The protocol that the implementation claims to follow.
    pub protocol: Rules,
    /// The name of the lock.
    pub lock: String,
    /// Number of slots before the first event.
    pub slots: u32,
    /// Seed of the workload.
    pub seed: u64,
    /// The longest negotiated heartbeat interval, in milliseconds. 0 without heartbeats.
    pub heartbeat_ms: u64,
    /// The options of the run. `None` if another program recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub played: Option<Played>,
}

/// The protocol that an implementation follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Rules {
    /// A holder declares an exclusive queue: docs/protocols/persistent-semaphore.md.
    ExclusiveQueue,
    /// As above, with the queue names and options of amqp-locks-python.
    AmqpLocksPython,
    /// A holder is an exclusive consumer: docs/protocols/exclusive-consumer.md.
    ExclusiveConsumer,
    /// A holder keeps a message unacknowledged: docs/protocols/token.md.
    Token,
    /// Another kind of lock. The broker is not observed, and only the answers are judged.
    None,
}

impl Rules {
    /// Returns the corresponding protocol of the library, which derives the names of queues.
    pub fn protocol(self) -> Option<Protocol> {
        match self {
            Self::ExclusiveQueue => Some(Protocol::ExclusiveQueue(Profile::Guideline)),
            Self::AmqpLocksPython => Some(Protocol::ExclusiveQueue(Profile::AmqpLocksPython)),
            Self::ExclusiveConsumer => Some(Protocol::ExclusiveConsumer),
            Self::Token => Some(Protocol::Token(QueueType::Classic)),
            Self::None => None,
        }
    }
}

impl Header {
    /// Returns the name of the lock with its protocol, or `None` if the broker is not observed.
    ///
    /// # Errors
    ///
    /// [`NameError`] if the name is invalid on a broker.
    pub fn lock_name(&self) -> Result<Option<LockName>, NameError> {
        let Some(protocol) = self.protocol.protocol() else { return Ok(None) };
        Ok(Some(LockName::new(&self.lock)?.with_protocol(protocol)))
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Microseconds since the start of the run. Events with equal times are ordered by their
    /// position.
    pub at: u64,
    /// The kind and the details of the event.
    #[serde(flatten)]
    pub what: What,
}

/// The kind and the details of an event. Processes are numbered from 1. A process that is
/// restarted gets a new number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// An operation was requested, or answered.
    Operation(Operation),
    /// The process reported, without a request, that it no longer holds.
    Lost {
        /// The process.
        process: u32,
        /// The reason that it gave.
        why: String,
    },
    /// A process started or ended.
    Process {
        /// The process.
        process: u32,
        /// Its new state.
        state: ProcessState,
        /// The command of its implementation, if it is not the one in the header. Recorded when
        /// the process starts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        implementation: Option<String>,
    },
    /// A method passed the proxy. The time is when the proxy read it, before it forwarded it.
    Frame(Frame),
    /// A connection of a process through the proxy began or ended.
    Connection {
        /// The process.
        process: u32,
        /// Number of the connection within its process, from 1.
        connection: u32,
        /// Its new state.
        state: ConnectionState,
    },
    /// A fault was injected.
    Fault {
        /// The target process, or `None` if the target was the broker.
        process: Option<u32>,
        /// The kind: [`KILL`], [`KILL_ALONE`], [`CUT`], or for example `cut before queue.declare`. A fault is
        /// recorded before it takes effect.
        fault: String,
    },
}

/// Kind of a fault: a process was killed (SIGKILL).
pub const KILL: &str = "kill";

/// Kind of a fault: a command that runs another one under the lock was killed (SIGKILL), and the
/// other one was not.
pub const KILL_ALONE: &str = "kill without its work";

/// Kind of a fault: all connections of a process were cut, regardless of its current operation.
pub const CUT: &str = "cut";

/// A request to a process, or its answer. A process executes one operation at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The process.
    pub process: u32,
    /// The requested operation.
    pub verb: Verb,
    /// Whether this is the request, or the kind of answer.
    pub phase: Phase,
    /// Acquire, ok: the slot number from 1, if the implementation reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Acquire, ok: the id of the token, if the implementation reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Acquire, ok: the fencing token, if the implementation reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Verify, ok: whether the slot is held but being removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Resize: the requested number of slots. Count, ok: the actual number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Acquire: how long it may wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Fail and info: the reason that the implementation gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An operation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Acquire a slot.
    Acquire,
    /// Ask the broker whether the slot is still held.
    Verify,
    /// Say whether the program regards the slot as held, without asking the broker.
    Believes,
    /// Release the slot.
    Release,
    /// Set the number of slots.
    Resize,
    /// Say how many slots there are.
    Count,
    /// Delete the lock.
    Destroy,
}

impl Verb {
    /// Returns the name of the operation in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Verify => "verify",
            Self::Believes => "believes",
            Self::Release => "release",
            Self::Resize => "resize",
            Self::Count => "count",
            Self::Destroy => "destroy",
        }
    }
}

/// The part of an operation that an event records. The kinds of answers are those of Jepsen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It was requested.
    Invoke,
    /// It was executed.
    Ok,
    /// It was certainly not executed.
    Fail,
    /// It may have been executed.
    Info,
}

/// Start or end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// The prover started it.
    Started,
    /// The prover killed it (SIGKILL), and it has ended.
    Killed,
    /// It ended by itself.
    Exited,
}

/// Start or end of a connection through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// The client connected.
    Opened,
    /// The client closed it. The broker may detect this later.
    ClosedByClient,
    /// The broker closed it.
    ClosedByBroker,
    /// The prover cut it: both sides see the end of the connection.
    Cut,
}

/// A method between a process and the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The process.
    pub process: u32,
    /// Number of the connection within its process, from 1.
    pub connection: u32,
    /// The channel. 0 is the connection itself.
    pub channel: u16,
    /// The side that sent it.
    pub sender: Sender,
    /// The AMQP name, for example `queue.declare-ok`. A passive declare is
    /// `queue.declare(passive)`. `content` is the body of the message that the previous method
    /// on this channel announced.
    pub method: String,
    /// The queue or routing key in the method, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// The reply code of a close or a return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The consumer tag of a consume, cancel or deliver, and of their answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The delivery tag of a deliver, get-ok, ack, nack or reject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<u64>,
    /// Whether a declare or a consume requests exclusivity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// The flag that changes how the method treats messages: `multiple` of an ack or nack,
    /// `no-ack` of a consume or get, `mandatory` of a publish. The flag `requeue` has its own
    /// field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flag: bool,
    /// Whether a reject or nack requeues the message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requeue: bool,
    /// `declare-ok`: the number of ready messages. `delete-ok`: the number of deleted messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<u32>,
    /// `declare-ok`: the number of consumers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<u32>,
    /// `content`: the first 64 bytes of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Further options, sorted. `queue.declare`: `durable`, `auto-delete` and the arguments, for
    /// example `x-max-length=0`. `basic.consume`: the arguments. `connection.start-ok`: the
    /// capabilities. Holder facts only if they are too long. `None` if not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
}

/// The two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sender {
    /// The implementation.
    Client,
    /// The broker.
    Broker,
}

impl History {
    /// Returns whether processes were asked anything. Otherwise only the broker's side is known.
    pub fn has_operations(&self) -> bool {
        self.events.iter().any(|event| matches!(event.what, What::Operation(_)))
    }
}
