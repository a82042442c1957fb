//! Checks an AMQP field table without recursion, before a parser that recurses reads it.
//! See `incoming` for the frames around it.

use crate::violation::Violation;

/// Maximum nesting of a table. RabbitMQ's own tables have at most three levels. A parser
/// that recurses needs a few KiB of stack for each level.
const MAX_DEPTH: usize = 16;

/// Maximum number of values in a table. A value of one byte takes a parser about 40.
const MAX_VALUES: usize = 1024;

/// Checks the field table at the beginning of `bytes`. Returns its length, in bytes.
pub fn check_table(bytes: &[u8]) -> Result<usize, Violation> {
    let end = end_of(bytes, 0, bytes.len())?;
    let mut open = vec![Container { end, has_keys: true }];
    let (mut at, mut values) = (4, 0);
    while let Some(&Container { end, has_keys }) = open.last() {
        if at == end {
            open.pop();
            continue;
        }
        if has_keys {
            at += 1 + usize::from(*bytes.get(at).ok_or(Violation::Malformed)?);
        }
        let kind = *bytes.get(at).ok_or(Violation::Malformed)?;
        at += 1;
        values += 1;
        if values > MAX_VALUES {
            return Err(Violation::LargeTable);
        }
        at = match kind {
            b't' | b'b' | b'B' => at + 1,
            b's' | b'U' | b'u' => at + 2,
            b'I' | b'i' | b'f' => at + 4,
            b'D' => at + 5,
            b'L' | b'l' | b'd' | b'T' => at + 8,
            b'V' => at,
            b'S' | b'x' => end_of(bytes, at, end)?,
            b'F' | b'A' if open.len() == MAX_DEPTH => return Err(Violation::DeepTable),
            b'F' | b'A' => {
                let inner = end_of(bytes, at, end)?;
                open.push(Container { end: inner, has_keys: kind == b'F' });
                at + 4
            }
            _ => return Err(Violation::Malformed),
        };
        if at > end {
            return Err(Violation::Malformed);
        }
    }
    Ok(end)
}

/// A table or an array that is being read.
struct Container {
    /// Where it ends.
    end: usize,
    has_keys: bool,
}

/// Returns where the text or container ends whose length stands at `at`. It must end within
/// `limit`.
fn end_of(bytes: &[u8], at: usize, limit: usize) -> Result<usize, Violation> {
    let length = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Violation::Malformed)?;
    let end = u64::from(u32::from_be_bytes(*length)) + at as u64 + 4;
    usize::try_from(end).ok().filter(|end| *end <= limit).ok_or(Violation::Malformed)
}
