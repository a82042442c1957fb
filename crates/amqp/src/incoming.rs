//! Checks each frame of the broker before lapin parses it: its size, the nesting of its
//! tables, and how much comes that the client did not ask for. A message that exceeds a
//! limit reaches the client without its properties or body: it stays in its queue, and
//! must not end every client that reads it. Anything else ends the connection. Pure; see
//! `outgoing` for the client's frames, `stream` for the connection's bytes, and
//! docs/decisions.md for the limits.

mod tables;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lapin::protocol::{AMQPError, AMQPErrorKind};
use lapin::{Error as LapinError, ErrorKind};
use tokio::sync::SetOnce;

use self::tables::check_table;
use super::endpoint::FRAME_MAX;
use crate::error::AmqpError;
use crate::frame::{
    BODY, END, HEADER, HEARTBEAT, METHOD, PREFIX, channel_of, method_of, size_of, whole,
};
use crate::outgoing::Outgoing;
use crate::violation::Violation;

/// Maximum size of a message's body. Longer ones are dropped. The messages that are read
/// have less than 1 KiB.
const MAX_BODY: u64 = 64 * 1024;

/// Maximum number of bytes that the client did not ask for, between two of its own frames.
const MAX_UNASKED: usize = 1024 * 1024;

/// Smallest maximum frame size that lapin can negotiate, in bytes.
const SMALLEST_FRAME_MAX: u32 = 8192;

/// Smallest maximum number of channels that suffices for each protocol. With fewer, a
/// missing channel would look like a lost connection.
const SMALLEST_CHANNEL_MAX: u16 = 3;

/// The header that a broker sends instead of a frame if it refuses the protocol's version.
const OTHER_VERSION: &[u8] = b"AMQP";

const CLOSE: (u16, u16) = (20, 40);
const CLOSE_CONNECTION: (u16, u16) = (10, 50);
const START: (u16, u16) = (10, 10);
const TUNE: (u16, u16) = (10, 30);
const RETURN: (u16, u16) = (60, 50);

/// Methods by which a broker answers a method of the client, by class.
const ANSWERS: &[(u16, &[u16])] = &[
    (10, &[10, 20, 30, 41, 51, 71]),
    (20, &[11, 21, 41]),
    (30, &[11]),
    (40, &[11, 21, 31, 51]),
    (50, &[11, 21, 31, 41, 51]),
    (60, &[11, 21, 31, 71, 72, 111]),
    (85, &[11]),
    (90, &[11, 21, 31]),
];

/// Methods that a broker sends unasked, by class.
const UNASKED: &[(u16, &[u16])] =
    &[(10, &[50, 60, 61]), (20, &[20, 40]), (60, &[30, 50, 60, 80, 120])];

/// The frames of one connection.
#[derive(Default)]
pub struct Frames {
    /// The beginning of the next frame from the broker.
    partial: Vec<u8>,
    /// Messages whose header was read, by channel.
    contents: HashMap<u16, Content>,
    /// Bytes that were not asked for since the client's last frame.
    unasked: usize,
    /// Number of messages that the client published and the broker did not return.
    published: u64,
    sent: Outgoing,
    closes: Closes,
}

/// What the broker closes. Recorded before lapin reads the frame: lapin reports the reason only
/// when it has confirmed the close, and not at all if the socket is closed before.
#[derive(Clone, Default)]
pub struct Closes {
    /// Number of channels that it has closed.
    pub channels: Arc<AtomicU32>,
    /// The first error of the connection. The broker's reason to close it is one.
    pub failure: Arc<SetOnce<AmqpError>>,
}

/// A message that is being received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Its header comes next. A returned message needs only its routing key, and lapin keeps
    /// it until a confirm.
    Returned,
    /// This number of bytes of its body is to be dropped.
    Dropped(u64),
}

impl Frames {
    /// Records in `closes` what the broker closes.
    pub fn recording(closes: Closes) -> Self {
        Self { closes, ..Self::default() }
    }

    /// Checks bytes from the broker. Appends complete frames to `checked`.
    pub fn receive(&mut self, mut bytes: &[u8], checked: &mut Vec<u8>) -> Result<(), Violation> {
        while !bytes.is_empty() {
            let needed = self.needed()?;
            let (part, rest) = bytes.split_at(bytes.len().min(needed - self.partial.len()));
            self.partial.extend_from_slice(part);
            bytes = rest;
            if self.partial.len() == self.needed()? {
                let frame = std::mem::take(&mut self.partial);
                self.check(&frame, checked)?;
                self.partial = frame;
                self.partial.clear();
            }
        }
        Ok(())
    }

    /// Reads bytes of the client. Appends to `passed` those that the broker may receive.
    pub fn send(&mut self, bytes: &[u8], passed: &mut Vec<u8>) {
        let frames = self.sent.read(bytes, passed);
        self.published += frames.published;
        if frames.others > 0 {
            self.unasked = 0;
        }
    }

    /// Returns the length at which the next frame is complete, or its size known.
    fn needed(&self) -> Result<usize, Violation> {
        match self.partial.first() {
            None | Some(&(METHOD | HEADER | BODY | HEARTBEAT)) => {}
            Some(_) if self.partial.iter().zip(OTHER_VERSION).all(|(is, must)| is == must) => {
                return Ok(OTHER_VERSION.len() + 4);
            }
            Some(_) => return Err(Violation::NotAmqp),
        }
        let Some(prefix) = self.partial.first_chunk::<PREFIX>() else { return Ok(PREFIX) };
        let size = size_of(*prefix);
        if size > FRAME_MAX {
            return Err(Violation::LargeFrame(size));
        }
        Ok(whole(size))
    }

    fn check(&mut self, frame: &[u8], checked: &mut Vec<u8>) -> Result<(), Violation> {
        if frame[0] == OTHER_VERSION[0] {
            checked.extend_from_slice(frame);
            return Ok(());
        }
        let [prefix @ .., END] = frame else { return Err(Violation::NotAmqp) };
        let (prefix, payload) = prefix.split_first_chunk().ok_or(Violation::NotAmqp)?;
        let channel = channel_of(*prefix);
        match prefix[0] {
            METHOD => self.check_method(channel, payload, frame.len())?,
            HEADER => return self.check_header(channel, frame, checked),
            BODY if self.drops(channel, payload.len()) => return Ok(()),
            BODY => self.count(frame.len())?,
            _ if payload.is_empty() => {}
            _ => return Err(Violation::Malformed),
        }
        checked.extend_from_slice(frame);
        Ok(())
    }

    fn check_method(&mut self, channel: u16, payload: &[u8], len: usize) -> Result<(), Violation> {
        let method = method_of(payload)?;
        self.contents.remove(&channel);
        if is_among(method, UNASKED) {
            self.count(len)?;
        } else if !is_among(method, ANSWERS) {
            return Err(Violation::ForeignMethod(method.0, method.1));
        }
        match method {
            // Its table follows the version of the protocol.
            START => check_table(payload.get(6..).ok_or(Violation::Malformed)?).map(drop)?,
            TUNE => check_limits(&payload[4..])?,
            CLOSE => drop(self.closes.channels.fetch_add(1, Ordering::AcqRel)),
            CLOSE_CONNECTION => drop(self.closes.failure.set(close_reason(&payload[4..])?)),
            RETURN => {
                self.published = self.published.checked_sub(1).ok_or(Violation::ForeignReturn)?;
                self.contents.insert(channel, Content::Returned);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks the header of a message. Removes what exceeds a limit.
    fn check_header(
        &mut self,
        channel: u16,
        frame: &[u8],
        checked: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        // Class, weight, size of the body, flags of the properties.
        let payload = &frame[PREFIX..frame.len() - 1];
        let (header, properties) = payload.split_at_checked(14).ok_or(Violation::Malformed)?;
        let size = header[4..].first_chunk().copied().map_or(0, u64::from_be_bytes);
        let flags = u16::from_be_bytes([header[12], header[13]]);
        let is_returned = self.contents.remove(&channel) == Some(Content::Returned);
        let without_properties = is_returned || !are_fit(flags, properties);
        let without_body = is_returned || size > MAX_BODY;
        if without_body && size > 0 {
            self.contents.insert(channel, Content::Dropped(size));
        }
        let begin = checked.len();
        if without_properties {
            checked.extend_from_slice(&frame[..3]);
            checked.extend_from_slice(&14_u32.to_be_bytes());
            checked.extend_from_slice(&header[..12]);
            checked.extend_from_slice(&[0, 0, END]);
        } else {
            checked.extend_from_slice(frame);
        }
        if without_body {
            checked[begin + PREFIX + 4..begin + PREFIX + 12].fill(0);
        }
        self.count(checked.len() - begin)
    }

    /// Whether this part of a body belongs to a message whose body is dropped.
    fn drops(&mut self, channel: u16, len: usize) -> bool {
        let Some(Content::Dropped(left)) = self.contents.get_mut(&channel) else { return false };
        *left = left.saturating_sub(len as u64);
        if *left == 0 {
            self.contents.remove(&channel);
        }
        true
    }

    /// Counts bytes that the client did not ask for.
    fn count(&mut self, len: usize) -> Result<(), Violation> {
        self.unasked += len;
        if self.unasked > MAX_UNASKED { Err(Violation::Flood) } else { Ok(()) }
    }
}

/// Returns why the broker closes the connection.
fn close_reason(arguments: &[u8]) -> Result<AmqpError, Violation> {
    let (code, rest) = arguments.split_first_chunk().ok_or(Violation::Malformed)?;
    let (len, rest) = rest.split_first().ok_or(Violation::Malformed)?;
    let text = rest.get(..usize::from(*len)).ok_or(Violation::Malformed)?;
    let why = String::from_utf8_lossy(text).into_owned();
    Ok(match AMQPErrorKind::from_id(u16::from_be_bytes(*code)) {
        Some(kind) => {
            let error = ErrorKind::ProtocolError(AMQPError::new(kind, why.into()));
            AmqpError::operating(&LapinError::from(error), "")
        }
        None => AmqpError::ConnectionLost { why },
    })
}

/// Checks the limits that the broker proposes. 0 is no limit.
fn check_limits(proposed: &[u8]) -> Result<(), Violation> {
    let (channel_max, rest) = proposed.split_first_chunk().ok_or(Violation::Malformed)?;
    let channel_max = u16::from_be_bytes(*channel_max);
    let frame_max = u32::from_be_bytes(*rest.first_chunk().ok_or(Violation::Malformed)?);
    if (1..SMALLEST_CHANNEL_MAX).contains(&channel_max) {
        return Err(Violation::SmallChannelMax(channel_max));
    }
    if (1..SMALLEST_FRAME_MAX).contains(&frame_max) {
        return Err(Violation::SmallFrameMax(frame_max));
    }
    Ok(())
}

/// Whether the properties of a message are well formed, and their table within the limits.
fn are_fit(flags: u16, properties: &[u8]) -> bool {
    let mut rest = properties;
    // The type and the encoding precede the headers.
    for flag in [1 << 15, 1 << 14] {
        if flags & flag != 0 {
            let skipped = rest.split_first().and_then(|(len, rest)| rest.get(usize::from(*len)..));
            let Some(after) = skipped else { return false };
            rest = after;
        }
    }
    flags & 1 << 13 == 0 || check_table(rest).is_ok()
}

fn is_among(method: (u16, u16), methods: &[(u16, &[u16])]) -> bool {
    methods.iter().any(|(class, methods)| *class == method.0 && methods.contains(&method.1))
}
