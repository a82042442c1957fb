//! Parses AMQP in transit: where frames end, and which methods they contain. See
//! `connection` for how the bytes are forwarded.

use amq_protocol::frame::{AMQPFrame, parse_frame};
use amq_protocol::protocol::{AMQPClass, basic, queue};

/// A method in transit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// The connection, numbered from 1 in the order of acceptance.
    pub connection: usize,
    /// The channel on that connection; 0 is the connection itself.
    pub channel: u16,
    /// The end that sends it.
    pub sender: Sender,
    /// Its name in the protocol, for example `basic.publish` or `queue.delete-ok`. A
    /// passive declare is `queue.declare(passive)`.
    pub name: String,
    /// The queue or routing key in the method, or empty.
    pub queue: String,
    /// The arguments of a `queue.declare`, in the notation of the library's `Debug`.
    pub arguments: String,
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The connecting client.
    Client,
    /// The real broker.
    Broker,
}

/// The data that one end of one connection has sent so far.
pub struct Reader {
    connection: usize,
    sender: Sender,
    /// The start of an incomplete frame.
    pending: Vec<u8>,
    /// The data is not AMQP, as far as detectable. Nothing more is parsed.
    lost: bool,
}

impl Reader {
    pub fn new(connection: usize, sender: Sender) -> Self {
        Self { connection, sender, pending: Vec::new(), lost: false }
    }

    /// Parses the next bytes. Returns each method that they complete, with the positions
    /// in them where its frame starts (0 if that was before) and ends. An error describes
    /// the data that could not be parsed; after it, nothing is parsed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Vec<(usize, usize, Method)>, String> {
        let before = self.pending.len();
        let mut methods = Vec::new();
        if self.lost {
            return Ok(methods);
        }
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = frame_length(&self.pending[start..]) {
            let end = start + length;
            let Some(frame) = self.pending.get(start..end) else { break };
            match parse_frame(frame) {
                Ok((_, AMQPFrame::Method(channel, class))) => {
                    let (connection, sender) = (self.connection, self.sender);
                    let (name, queue) = (name(&class), named_queue(&class));
                    let arguments = match &class {
                        AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) => {
                            format!("{:?}", declare.arguments)
                        }
                        _ => String::new(),
                    };
                    let method = Method { connection, channel, sender, name, queue, arguments };
                    methods.push((start.saturating_sub(before), end - before, method));
                }
                Ok(_) => {}
                Err(error) => {
                    self.lost = true;
                    return Err(format!("{:?} sent no AMQP frame: {error:?}", self.sender));
                }
            }
            start = end;
        }
        self.pending.drain(..start);
        Ok(methods)
    }
}

/// Returns the length of the frame that starts here, if enough bytes are available.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    match bytes {
        // The protocol header, "AMQP" and a version.
        [b'A', ..] => Some(8),
        // Type, channel, size of the payload; the payload; the end mark.
        [_, _, _, a, b, c, d, ..] => {
            Some(usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap() + 8)
        }
        _ => None,
    }
}

/// Returns the protocol's name of a method from the library's: `Queue(DeclareOk(…` is
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
    let (class_name, method) = (parts.next().unwrap(), parts.next().unwrap());
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
