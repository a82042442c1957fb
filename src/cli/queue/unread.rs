//! The bytes that a pipe still contains after its reader has ended. Other processes may
//! have written to the same pipe, so each finds its own bytes by their content. See
//! `stdout` for the writes.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, tee};

/// The last writes to a pipe, as many as may be unread. Each is short enough to be
/// contiguous in the pipe.
#[derive(Default)]
pub(super) struct Writes {
    recent: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Writes {
    /// Adds a write to a pipe of this capacity.
    pub fn add(&mut self, bytes: &[u8], capacity: usize) {
        // The memory of the oldest one is used again.
        let mut write = Vec::new();
        while self.recent.front().is_some_and(|oldest| self.bytes - oldest.len() >= capacity) {
            write = self.recent.pop_front().unwrap_or_default();
            self.bytes -= write.len();
        }
        write.clear();
        write.extend_from_slice(bytes);
        self.bytes += bytes.len();
        self.recent.push_back(write);
    }

    /// Returns the number of bytes of the last write.
    pub fn last(&self) -> u64 {
        self.recent.back().map_or(0, |write| write.len() as u64)
    }

    /// Returns how many of the written bytes are among `content`, oldest first. The unread
    /// ones are the end of the written bytes, in order, so the latest place for each is right.
    /// Equal bytes of another writer may be counted as own ones, never the other way round.
    fn among(&self, mut content: &[u8]) -> u64 {
        let mut count = 0;
        for write in self.recent.iter().rev() {
            if let Some(at) = last_place(content, write) {
                count += write.len();
                content = &content[..at];
            } else {
                // The reader has taken its beginning.
                let is_rest = |length: &usize| content.starts_with(&write[write.len() - length..]);
                let rest = (1..write.len().min(content.len() + 1)).rev().find(is_rest);
                count += rest.unwrap_or(0);
                break;
            }
        }
        count as u64
    }
}

/// Returns the last position of `part` in `content`.
fn last_place(content: &[u8], part: &[u8]) -> Option<usize> {
    let last = content.len().checked_sub(part.len())?;
    (0..=last).rev().find(|&at| content[at..].starts_with(part))
}

/// Returns how many of these writes the pipe still contains, in bytes. Takes nothing out of
/// a pipe without a name, so that other writers find theirs. A named one is emptied, because
/// the next process that opens it would read elements that were returned.
pub(super) fn unread(pipe: &File, capacity: usize, writes: &Writes) -> io::Result<u64> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let has_name = std::fs::read_link(&path)?.is_absolute();
    let mut reader =
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let content = if has_name { drain(&mut reader)? } else { copy(&reader, capacity)? };
    Ok(writes.among(&content))
}

/// Returns the content of a pipe without taking it out.
fn copy(pipe: &File, capacity: usize) -> io::Result<Vec<u8>> {
    let (mut content, into) = io::pipe()?;
    let size = i32::try_from(capacity).map_err(io::Error::other)?;
    fcntl(&into, FcntlArg::F_SETPIPE_SZ(size))?;
    match tee(pipe, &into, capacity, SpliceFFlags::SPLICE_F_NONBLOCK) {
        Ok(_) | Err(nix::Error::EAGAIN) => {}
        Err(error) => return Err(error.into()),
    }
    drop(into);
    let mut copied = Vec::new();
    content.read_to_end(&mut copied)?;
    Ok(copied)
}

/// Empties a pipe. Returns its content.
fn drain(pipe: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    match pipe.read_to_end(&mut content) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writes(all: &[&[u8]]) -> Writes {
        let mut writes = Writes::default();
        for write in all {
            writes.add(write, 100);
        }
        writes
    }

    #[test]
    fn bytes_of_another_writer_are_not_counted() {
        let mine = writes(&[b"1\n", b"2\n", b"3\n"]);
        assert_eq!(mine.among(b""), 0);
        assert_eq!(mine.among(b"a\nb\n"), 0);
        assert_eq!(mine.among(b"a\n3\nb\n"), 2);
        assert_eq!(mine.among(b"a\n2\nb\n3\n"), 4);
        assert_eq!(writes(&[b"123\n"]).among(b"3\nx\n"), 2);
        assert_eq!(writes(&[]).among(b"3\n"), 0);
    }

    #[test]
    fn only_as_many_writes_are_kept_as_the_pipe_holds() {
        let mut writes = Writes::default();
        for _ in 0..1000 {
            writes.add(&[b'x'; 40], 100);
        }
        // Three hold what may be unread, and the last one is added to them.
        assert_eq!(writes.recent.len(), 4);
        assert_eq!(writes.last(), 40);
    }

    proptest! {
        #[test]
        fn the_unread_bytes_of_one_of_two_writers_are_counted_and_never_too_few(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(0_u8..3, 1..5)), 0..20),
            read in 0_usize..40,
        ) {
            let mut mine = Writes::default();
            let (mut content, mut owners) = (Vec::new(), Vec::new());
            for (is_mine, bytes) in &parts {
                if *is_mine {
                    mine.add(bytes, 1000);
                }
                content.extend_from_slice(bytes);
                owners.extend(bytes.iter().map(|_| *is_mine));
            }
            let read = read.min(content.len());
            let unread = owners[read..].iter().filter(|is_mine| **is_mine).count() as u64;
            let counted = mine.among(&content[read..]);
            prop_assert!(counted >= unread);
            // A single writer's count is exact.
            if owners.iter().all(|is_mine| *is_mine) {
                prop_assert_eq!(counted, unread);
            }
        }
    }
}
