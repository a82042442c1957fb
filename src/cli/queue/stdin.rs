//! Reads standard input as elements: split at a separator or into blocks, read ahead up
//! to a limit of memory. See `put` for how the elements are put.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_pressure::MAX_ELEMENT_BYTES;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::cli::streams::Stdin;

/// Maximum number of elements, and of bytes unless a single element is larger, that are
/// put together or read ahead.
pub(super) const BATCH_ELEMENTS: usize = 1000;
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// Time in which available input is read.
const SETTLED: Duration = Duration::from_millis(10);

/// Number of bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Where an element ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// At this byte, which belongs to no element.
    At(u8),
    /// After this number of bytes.
    Every(usize),
}

/// Reason why the input ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("standard input can't be read: {0}")]
    Io(#[from] io::Error),
    #[error("an element is longer than {0} bytes, which is more than Redis takes: use --size")]
    TooLong(usize),
}

/// Splits bytes into elements.
#[derive(Debug)]
struct Cutter {
    cut: Cut,
    longest: usize,
    begun: Vec<u8>,
}

impl Cutter {
    fn new(cut: Cut, longest: usize) -> Self {
        Self { cut, longest, begun: Vec::new() }
    }

    /// Adds the elements that end within these bytes. Must not be called again after an
    /// error.
    fn feed(&mut self, mut bytes: &[u8], into: &mut VecDeque<Vec<u8>>) -> Result<(), ReadError> {
        while !bytes.is_empty() {
            let (part, rest, is_whole) = match self.cut {
                Cut::At(separator) => match bytes.iter().position(|&byte| byte == separator) {
                    Some(at) => (&bytes[..at], &bytes[at + 1..], true),
                    None => (bytes, &bytes[bytes.len()..], false),
                },
                Cut::Every(size) => {
                    let wanted = size - self.begun.len();
                    let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
                    (part, rest, part.len() == wanted)
                }
            };
            if self.begun.len() + part.len() > self.longest {
                return Err(ReadError::TooLong(self.longest));
            }
            self.begun.extend_from_slice(part);
            if is_whole {
                into.push_back(std::mem::take(&mut self.begun));
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the last element, which needs no separator.
    fn end(&mut self) -> Option<Vec<u8>> {
        (!self.begun.is_empty()).then(|| std::mem::take(&mut self.begun))
    }
}

/// Elements from standard input.
pub(super) struct Input {
    stdin: Arc<Stdin>,
    buffer: Vec<u8>,
    cutter: Cutter,
    read: VecDeque<Vec<u8>>,
    read_bytes: usize,
    /// A read that was started and whose result is not known yet.
    reading: Option<JoinHandle<(Vec<u8>, io::Result<usize>)>>,
    /// Whether the input has ended, with an error if it ended early.
    ended: Option<Result<(), ReadError>>,
}

impl Input {
    /// Opens standard input.
    pub fn open(cut: Cut) -> io::Result<Self> {
        Ok(Self {
            stdin: Arc::new(Stdin::open()?),
            buffer: vec![0; READ_BYTES],
            cutter: Cutter::new(cut, MAX_ELEMENT_BYTES),
            read: VecDeque::new(),
            read_bytes: 0,
            reading: None,
            ended: None,
        })
    }

    /// Returns whether the input has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns the error if the input ended early.
    pub fn outcome(&mut self) -> Result<(), ReadError> {
        self.ended.take().unwrap_or(Ok(()))
    }

    /// Returns whether more input should be read ahead.
    pub fn wants_more(&self) -> bool {
        self.ended.is_none() && self.read.len() < BATCH_ELEMENTS && self.read_bytes < BATCH_BYTES
    }

    /// Waits for input and reads it. Cancel safe: input that was already read is not
    /// lost.
    pub async fn read_more(&mut self) {
        let reading = self.reading.get_or_insert_with(|| {
            let (stdin, mut buffer) = (Arc::clone(&self.stdin), std::mem::take(&mut self.buffer));
            spawn_blocking(move || {
                let outcome = (&*stdin).read(&mut buffer);
                (buffer, outcome)
            })
        });
        let ended = reading.await;
        self.reading = None;
        let outcome = ended.map_err(io::Error::other).and_then(|(buffer, outcome)| {
            self.buffer = buffer;
            outcome
        });
        let before = self.read.len();
        match outcome {
            Ok(0) => {
                self.read.extend(self.cutter.end());
                self.ended = Some(Ok(()));
            }
            Ok(count) => {
                if let Err(error) = self.cutter.feed(&self.buffer[..count], &mut self.read) {
                    self.ended = Some(Err(error));
                }
            }
            Err(error) => self.ended = Some(Err(error.into())),
        }
        self.read_bytes += self.read.range(before..).map(Vec::len).sum::<usize>();
    }

    /// Adds the input of a read that was started but not awaited.
    pub async fn settle(&mut self) {
        if self.reading.is_some() {
            let _ = timeout(SETTLED, self.read_more()).await;
        }
    }

    /// Returns the next elements to put, up to `most_bytes` unless a single element is
    /// larger; empty if nothing was read.
    pub fn next_batch(&mut self, most_bytes: usize) -> Vec<Vec<u8>> {
        let mut bytes = 0;
        let fits = |(count, element): &(usize, &Vec<u8>)| {
            bytes += element.len();
            *count == 0 || *count < BATCH_ELEMENTS && bytes <= most_bytes
        };
        let count = self.read.iter().enumerate().take_while(fits).count();
        let batch: Vec<Vec<u8>> = self.read.drain(..count).collect();
        self.read_bytes -= batch.iter().map(Vec::len).sum::<usize>();
        batch
    }

    /// Returns the number of elements that were read but not taken, and whether the start
    /// of another one was read.
    pub fn left(&self) -> (usize, bool) {
        (self.read.len(), !self.cutter.begun.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn elements(cut: Cut, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut cutter, mut found) = (Cutter::new(cut, 100), VecDeque::new());
        for piece in pieces {
            cutter.feed(piece, &mut found).unwrap();
        }
        found.extend(cutter.end());
        found.into()
    }

    #[test]
    fn a_last_line_without_an_end_counts_and_an_empty_line_is_an_empty_element() {
        let lines = |pieces| elements(Cut::At(b'\n'), pieces);
        assert_eq!(lines(&[b"a\n\nb", b"c\n", b"\nd"]), [&b"a"[..], b"", b"bc", b"", b"d"]);
        assert_eq!(lines(&[b"a\n"]), [b"a"]);
        assert_eq!(lines(&[b""]), [b""; 0]);
        assert_eq!(elements(Cut::At(0), &[b"a\nb\0\0"]), [&b"a\nb"[..], b""]);
    }

    #[test]
    fn an_element_may_be_as_long_as_allowed_and_no_longer() {
        for cut in [Cut::At(b'\n'), Cut::Every(200)] {
            let (mut cutter, mut found) = (Cutter::new(cut, 100), VecDeque::new());
            cutter.feed(&[b'x'; 60], &mut found).unwrap();
            cutter.feed(&[b'x'; 40], &mut found).unwrap();
            assert!(matches!(cutter.feed(b"x", &mut found), Err(ReadError::TooLong(100))));
        }
    }

    proptest! {
        #[test]
        fn however_the_input_arrives_the_elements_are_the_same(
            bytes in prop::collection::vec(0_u8..4, 0..200), at in 0_usize..200, size in 1_usize..9,
        ) {
            let (one, two) = bytes.split_at(at.min(bytes.len()));
            let blocks = elements(Cut::Every(size), &[one, two]);
            prop_assert_eq!(blocks.concat(), bytes.clone());
            prop_assert!(blocks.iter().rev().skip(1).all(|block| block.len() == size));
            let lines = elements(Cut::At(0), &[one, two]);
            prop_assert_eq!(&lines, &elements(Cut::At(0), &[&bytes]));
            let mut again = lines.join(&0);
            // Only an input that ends with a separator has another element.
            again.extend(bytes.last().filter(|&&last| last == 0));
            prop_assert_eq!(again, bytes);
        }
    }
}
