//! Parses AMQP in transit: finds the ends of frames, and the methods and message bodies in them.
//! See `connection` for how the bytes are forwarded.

use std::collections::HashMap;

use amq_protocol::frame::{AMQPFrame, parse_frame};

use super::method::{CONTENT, Fields, Method};
use super::observer::Passed;
use crate::history::Sender;

/// Number of bytes of a body that are kept.
const KEPT: usize = 64;

/// The data that one side of a connection has sent so far.
pub struct Reader {
    connection: usize,
    sender: Sender,
    /// The start of an incomplete frame.
    pending: Vec<u8>,
    /// The incomplete message of each channel.
    contents: HashMap<u16, Content>,
    /// The frames that were read and not taken yet.
    passed: Vec<Passed>,
    /// Whether the data is not AMQP. If so, nothing more is parsed.
    lost: bool,
}

/// A method or message body that the data completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position in the data at which its frame starts. 0 if it started in earlier data.
    pub start: usize,
    /// The position in the data after its frame.
    pub end: usize,
    /// The method. A body has the name [`CONTENT`].
    pub method: Method,
}

impl Found {
    /// Returns whether this is a message body.
    pub fn is_content(&self) -> bool {
        self.method.name == CONTENT
    }
}

/// A message whose method was read.
struct Content {
    queue: String,
    /// The number of missing bytes of the body. `None` until the header with the size was read.
    missing: Option<u64>,
    body: Vec<u8>,
}

impl Reader {
    pub fn new(connection: usize, sender: Sender) -> Self {
        let (pending, contents, passed) = (Vec::new(), HashMap::new(), Vec::new());
        Self { connection, sender, pending, contents, passed, lost: false }
    }

    /// Parses the next bytes. Returns the methods and bodies that they complete. Fails with a
    /// description of data that is not AMQP; nothing is parsed after that.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Vec<Found>, String> {
        let before = self.pending.len();
        let mut all = Vec::new();
        if self.lost {
            return Ok(all);
        }
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = frame_length(&self.pending[start..]) {
            let end = start.saturating_add(length);
            let Some(frame) = self.pending.get(start..end) else { break };
            let parsed = match parse_frame(frame) {
                Ok((_, parsed)) => parsed,
                Err(error) => {
                    self.lost = true;
                    return Err(format!("{:?} sent no AMQP frame: {error:?}", self.sender));
                }
            };
            let heartbeat = matches!(parsed, AMQPFrame::Heartbeat);
            let (connection, sender) = (self.connection, self.sender);
            self.passed.push(Passed { connection, sender, bytes: length, heartbeat });
            if let Some(method) = self.found(parsed) {
                all.push(Found { start: start.saturating_sub(before), end: end - before, method });
            }
            start = end;
        }
        self.pending.drain(..start);
        Ok(all)
    }

    /// Returns the frames that were read since the last call.
    pub fn passed(&mut self) -> Vec<Passed> {
        std::mem::take(&mut self.passed)
    }

    fn found(&mut self, frame: AMQPFrame) -> Option<Method> {
        let channel = match frame {
            AMQPFrame::Method(channel, class) => {
                let method = Method::new(self.connection, channel, self.sender, &class);
                self.announce(&method);
                return Some(method);
            }
            AMQPFrame::Header(channel, header) => {
                self.contents.get_mut(&channel)?.missing = Some(header.body_size);
                channel
            }
            AMQPFrame::Body(channel, part) => {
                let content = self.contents.get_mut(&channel)?;
                let missing = content.missing?;
                let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
                content.missing = Some(missing.saturating_sub(length));
                let kept = part.len().min(KEPT.saturating_sub(content.body.len()));
                content.body.extend_from_slice(&part[..kept]);
                channel
            }
            _ => return None,
        };
        if self.contents.get(&channel)?.missing != Some(0) {
            return None;
        }
        let Content { queue, body, .. } = self.contents.remove(&channel)?;
        let body = Some(String::from_utf8_lossy(&body).into_owned());
        Some(Method {
            connection: self.connection,
            channel,
            sender: self.sender,
            name: CONTENT.to_owned(),
            queue,
            arguments: String::new(),
            fields: Fields { body, ..Fields::default() },
        })
    }

    /// Expects a body after a method that announces one. Any other method on the channel, for
    /// example a close, ends an incomplete body.
    fn announce(&mut self, method: &Method) {
        let announces = ["basic.publish", "basic.return", "basic.deliver", "basic.get-ok"];
        if announces.contains(&method.name.as_str()) {
            let content = Content { queue: method.queue.clone(), missing: None, body: Vec::new() };
            self.contents.insert(method.channel, content);
        } else {
            self.contents.remove(&method.channel);
        }
    }
}

/// Returns the length of the frame that starts here, if enough bytes are available.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    match bytes {
        // The protocol header, "AMQP" and a version.
        [b'A', ..] => Some(8),
        // Type, channel, size of the payload; the payload; the end mark.
        [_, _, _, a, b, c, d, ..] => {
            let payload = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d]));
            Some(payload.unwrap_or(usize::MAX).saturating_add(8))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
