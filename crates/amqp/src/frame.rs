//! The layout of an AMQP 0-9-1 frame: type, channel, size, payload and end. See `incoming` and
//! `outgoing` for the frames of the two peers.

use crate::violation::Violation;

pub const METHOD: u8 = 1;
pub const HEADER: u8 = 2;
pub const BODY: u8 = 3;
pub const HEARTBEAT: u8 = 8;
pub const END: u8 = 0xCE;

/// Length of a frame's type, channel and size, in bytes.
pub const PREFIX: usize = 7;

/// Returns the channel of a frame. 0 is the connection itself.
pub fn channel_of(prefix: [u8; PREFIX]) -> u16 {
    u16::from_be_bytes([prefix[1], prefix[2]])
}

/// Returns the size of a frame's payload, in bytes.
pub fn size_of(prefix: [u8; PREFIX]) -> u32 {
    u32::from_be_bytes([prefix[3], prefix[4], prefix[5], prefix[6]])
}

/// Returns the length of a frame with a payload of this size, in bytes.
pub fn whole(size: u32) -> usize {
    PREFIX + size as usize + 1
}

/// Returns class and method.
pub fn method_of(payload: &[u8]) -> Result<(u16, u16), Violation> {
    let &[a, b, c, d] = payload.first_chunk().ok_or(Violation::Malformed)?;
    Ok((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
