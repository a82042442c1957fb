//! The client's own frames: counts them, and drops those of a channel that the client has
//! closed. lapin checks a channel's state before it queues a request, and the broker's close may
//! come in between. The request would follow the confirmation of the close, and the broker would
//! end the connection with everything held on it (hazard A60). Pure; see `incoming` for the
//! broker's frames, and `channel::together` for the answers that such requests never get.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::frame::{HEARTBEAT, METHOD, PREFIX, channel_of, method_of, size_of, whole};

const OPEN: (u16, u16) = (20, 10);
const CLOSE: (u16, u16) = (20, 40);
const CLOSE_OK: (u16, u16) = (20, 41);
const PUBLISH: (u16, u16) = (60, 40);

/// Reads the frames of one client. They are well formed, and only their beginnings are read.
#[derive(Default)]
pub struct Outgoing {
    /// The beginning of a frame: prefix, class and method.
    beginning: Vec<u8>,
    /// Number of bytes before the next frame.
    left: usize,
    /// Whether these are dropped.
    drops: bool,
    has_begun: bool,
    /// Channels that the client has closed, and not opened again.
    closed: HashMap<u16, Closed>,
}

/// How a channel was closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// By the client. If the broker closes it at the same time, the client confirms that.
    Asked,
    /// By the broker, and the client has confirmed it.
    Confirmed,
}

/// Numbers of frames that were not dropped.
#[derive(Default)]
pub struct Counts {
    pub published: u64,
    /// All but heartbeats.
    pub others: u64,
}

impl Outgoing {
    /// Length of the protocol's header, with which a client begins.
    const GREETING: usize = 8;

    /// Reads bytes of the client. Appends to `passed` those that the broker may receive. Keeps
    /// the beginning of an incomplete frame until the next call.
    pub fn read(&mut self, mut bytes: &[u8], passed: &mut Vec<u8>) -> Counts {
        let mut counts = Counts::default();
        if !self.has_begun && !bytes.is_empty() {
            self.has_begun = true;
            self.left = Self::GREETING;
        }
        while !bytes.is_empty() {
            let (rest_of_frame, rest) = bytes.split_at(bytes.len().min(self.left));
            self.left -= rest_of_frame.len();
            if !self.drops {
                passed.extend_from_slice(rest_of_frame);
            }
            let (part, rest) = rest.split_at(rest.len().min(self.missing()));
            self.beginning.extend_from_slice(part);
            bytes = rest;
            if self.missing() == 0 {
                self.begin_frame(&mut counts, passed);
            }
        }
        counts
    }

    /// Number of bytes without which the beginning is not complete. Only methods have a
    /// class and a number.
    fn missing(&self) -> usize {
        let needed = if self.beginning.first() == Some(&METHOD) { PREFIX + 4 } else { PREFIX };
        needed.saturating_sub(self.beginning.len())
    }

    fn begin_frame(&mut self, counts: &mut Counts, passed: &mut Vec<u8>) {
        let beginning = std::mem::take(&mut self.beginning);
        let Some((prefix, payload)) = beginning.split_first_chunk() else { return };
        self.left = whole(size_of(*prefix)).saturating_sub(beginning.len());
        let method = if prefix[0] == METHOD { method_of(payload).ok() } else { None };
        self.drops = !self.passes(channel_of(*prefix), method);
        if !self.drops {
            passed.extend_from_slice(&beginning);
            counts.published += u64::from(method == Some(PUBLISH));
            counts.others += u64::from(prefix[0] != HEARTBEAT);
        }
    }

    /// Whether the broker may receive a frame on this channel.
    fn passes(&mut self, channel: u16, method: Option<(u16, u16)>) -> bool {
        let closed = self.closed.get(&channel).copied();
        match method {
            Some(OPEN) => {
                self.closed.remove(&channel);
                true
            }
            Some(CLOSE) if closed.is_none() => {
                self.closed.insert(channel, Closed::Asked);
                true
            }
            Some(CLOSE_OK) if closed != Some(Closed::Confirmed) => {
                self.closed.insert(channel, Closed::Confirmed);
                true
            }
            _ => closed.is_none(),
        }
    }
}
