//! A method in transit, with the fields that a history records. See `reader` for how methods are
//! found in the data.

mod options;

use amq_protocol::protocol::{AMQPClass, basic, channel, connection, queue};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

use crate::history::Sender;
use options::options;

/// A method in transit, or, for an [`Observer`](super::Observer) only, the body of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// The connection, numbered from 1 in the order of acceptance.
    pub connection: usize,
    /// The channel on that connection; 0 is the connection itself.
    pub channel: u16,
    /// The side that sends it.
    pub sender: Sender,
    /// The AMQP name, for example `basic.publish` or `queue.delete-ok`. A passive declare is
    /// `queue.declare(passive)`. [`CONTENT`] is the body of a message.
    pub name: String,
    /// The queue or routing key in the method, or empty.
    pub queue: String,
    /// The arguments of a `queue.declare`, as formatted by the `Debug` implementation of the
    /// AMQP library.
    pub arguments: String,
    /// The other fields.
    pub fields: Fields,
}

/// The name of the pseudo method that represents the body of a message.
pub const CONTENT: &str = "content";

/// The fields of a method. Fields that a method does not have are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The reply code of a close or a return.
    pub code: Option<u16>,
    /// The consumer tag of a consume, cancel or deliver, and of their answers.
    pub consumer: Option<String>,
    /// The delivery tag of a deliver, get-ok, ack, nack or reject.
    pub delivery: Option<u64>,
    /// Whether a declare or a consume requests exclusivity.
    pub exclusive: bool,
    /// `multiple` of an ack or nack, `no-ack` of a consume or get, `mandatory` of a publish.
    pub flag: bool,
    /// Whether a reject or nack requeues the message.
    pub requeue: bool,
    /// `declare-ok`: the number of ready messages. `delete-ok`, `purge-ok`: the number of
    /// deleted messages.
    pub messages: Option<u32>,
    /// `declare-ok`: the number of consumers.
    pub consumers: Option<u32>,
    /// [`CONTENT`]: the first 64 bytes of the body. Bytes that are not UTF-8 are replaced.
    pub body: Option<String>,
    /// `connection.start`: the product and version of the broker.
    pub broker: Option<String>,
    /// `connection.tune-ok`: the heartbeat interval, in seconds. 0 without heartbeats.
    pub heartbeat: Option<u16>,
    /// Further options of a declare, consume or start-ok: see
    /// [`Frame::options`](crate::history::Frame::options).
    pub options: Option<Vec<String>>,
}

impl Method {
    /// Reads the fields of a parsed method.
    pub(super) fn new(connection: usize, channel: u16, sender: Sender, class: &AMQPClass) -> Self {
        let arguments = match class {
            AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) => {
                format!("{:?}", declare.arguments)
            }
            _ => String::new(),
        };
        let fields = Fields { options: options(class), ..Fields::of(class) };
        let (name, queue) = (name(class), named_queue(class));
        Self { connection, channel, sender, name, queue, arguments, fields }
    }
}

impl Fields {
    fn of(class: &AMQPClass) -> Self {
        use {channel::AMQPMethod as Channel, connection::AMQPMethod as Connection};
        let none = Self::default();
        match class {
            AMQPClass::Connection(Connection::Start(start)) => {
                Self { broker: product(&start.server_properties), ..none }
            }
            AMQPClass::Connection(Connection::TuneOk(tuned)) => {
                Self { heartbeat: Some(tuned.heartbeat), ..none }
            }
            AMQPClass::Connection(Connection::Close(close)) => {
                Self { code: Some(close.reply_code), ..none }
            }
            AMQPClass::Channel(Channel::Close(close)) => {
                Self { code: Some(close.reply_code), ..none }
            }
            AMQPClass::Queue(method) => Self::of_queue(method),
            AMQPClass::Basic(method) => Self::of_basic(method),
            _ => none,
        }
    }

    fn of_queue(method: &queue::AMQPMethod) -> Self {
        use queue::AMQPMethod as Queue;
        let none = Self::default();
        match method {
            Queue::Declare(declare) => Self { exclusive: declare.exclusive, ..none },
            Queue::DeclareOk(declared) => Self {
                messages: Some(declared.message_count),
                consumers: Some(declared.consumer_count),
                ..none
            },
            Queue::DeleteOk(deleted) => Self { messages: Some(deleted.message_count), ..none },
            Queue::PurgeOk(purged) => Self { messages: Some(purged.message_count), ..none },
            _ => none,
        }
    }

    fn of_basic(method: &basic::AMQPMethod) -> Self {
        use basic::AMQPMethod as Basic;
        let none = Self::default();
        // An empty tag asks the broker to choose one.
        let tag = |tag: &ShortString| Some(tag.as_str().to_owned()).filter(|tag| !tag.is_empty());
        match method {
            Basic::Consume(consume) => Self {
                consumer: tag(&consume.consumer_tag),
                exclusive: consume.exclusive,
                flag: consume.no_ack,
                ..none
            },
            Basic::ConsumeOk(consuming) => Self { consumer: tag(&consuming.consumer_tag), ..none },
            Basic::Cancel(cancel) => Self { consumer: tag(&cancel.consumer_tag), ..none },
            Basic::CancelOk(cancelled) => Self { consumer: tag(&cancelled.consumer_tag), ..none },
            Basic::Publish(publish) => Self { flag: publish.mandatory, ..none },
            Basic::Return(returned) => Self { code: Some(returned.reply_code), ..none },
            Basic::Deliver(deliver) => Self {
                consumer: tag(&deliver.consumer_tag),
                delivery: Some(deliver.delivery_tag),
                ..none
            },
            Basic::Get(get) => Self { flag: get.no_ack, ..none },
            Basic::GetOk(got) => Self { delivery: Some(got.delivery_tag), ..none },
            Basic::Ack(ack) => {
                Self { delivery: Some(ack.delivery_tag), flag: ack.multiple, ..none }
            }
            Basic::Nack(nack) => Self {
                delivery: Some(nack.delivery_tag),
                flag: nack.multiple,
                requeue: nack.requeue,
                ..none
            },
            Basic::Reject(reject) => {
                Self { delivery: Some(reject.delivery_tag), requeue: reject.requeue, ..none }
            }
            _ => none,
        }
    }
}

/// Returns the product and version in the broker's properties, if present.
fn product(properties: &FieldTable) -> Option<String> {
    let stated = |key| match properties.inner().get(key)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    };
    let stated: Vec<String> = ["product", "version"].into_iter().filter_map(stated).collect();
    (!stated.is_empty()).then(|| stated.join(" "))
}

/// Derives the AMQP name of a method from its `Debug` output: `Queue(DeclareOk(…` becomes
/// `queue.declare-ok`.
fn name(class: &AMQPClass) -> String {
    let text = format!("{class:?}");
    let mut parts = text.split('(').map(|part| {
        let mut kebab = String::new();
        for letter in part.chars() {
            if letter.is_ascii_uppercase() && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.push(letter.to_ascii_lowercase());
        }
        kebab
    });
    let class_name = parts.next().unwrap_or_default();
    let method = parts.next().unwrap_or_default();
    let passive = match class {
        AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) if declare.passive => "(passive)",
        _ => "",
    };
    format!("{class_name}.{method}{passive}")
}

fn named_queue(class: &AMQPClass) -> String {
    use {basic::AMQPMethod as Basic, queue::AMQPMethod as Queue};
    let name = match class {
        AMQPClass::Queue(Queue::Declare(declare)) => &declare.queue,
        AMQPClass::Queue(Queue::DeclareOk(declared)) => &declared.queue,
        AMQPClass::Queue(Queue::Delete(delete)) => &delete.queue,
        AMQPClass::Queue(Queue::Purge(purge)) => &purge.queue,
        AMQPClass::Basic(Basic::Publish(publish)) => &publish.routing_key,
        AMQPClass::Basic(Basic::Return(returned)) => &returned.routing_key,
        AMQPClass::Basic(Basic::Get(get)) => &get.queue,
        AMQPClass::Basic(Basic::Consume(consume)) => &consume.queue,
        _ => return String::new(),
    };
    name.as_str().to_owned()
}
