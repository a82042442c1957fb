//! Standard output as the destination of taken elements. Shows at any moment which
//! elements have arrived, and can stop writing at any moment. See `get` for elements that
//! have not arrived.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::unread::{Writes, unread};
use crate::cli::streams::expect_output;

/// Number of bytes that a writable pipe accepts without blocking. A pipe reduced to its
/// minimum size has room for one page, whatever the page size is.
const PAGE: usize = 4096;

/// Block size of writes that do not wait for a reader.
const BLOCK: usize = 256 << 10;

/// Number of elements that are written to a pipe one by one, each after the previous one
/// was read. A reader of a few lines, for example `head`, then leaves the rest to this
/// process.
const ONE_BY_ONE: u64 = 1000;

/// Maximum total size of these elements, in bytes.
const ONE_BY_ONE_BYTES: u64 = 4 << 20;

/// Size of a pipe unless a process has changed it.
const DEFAULT_SIZE: usize = 16 * PAGE;

/// Time for which a pipe that something else has filled may take to be read before elements
/// are written to it, and the interval of attempts to reduce its size.
const UNTIL_SMALL: Duration = Duration::from_secs(30);
const TRY_AGAIN: u16 = 10;

/// Reason why writing ended early.
#[derive(Debug)]
pub(super) enum Ended {
    /// The output has no reader any more.
    NoReader,
    /// Writing was stopped on request.
    Stopped,
    /// The output cannot be written.
    Failed(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe { Self::NoReader } else { Self::Failed(error) }
    }
}

impl From<nix::Error> for Ended {
    fn from(error: nix::Error) -> Self {
        io::Error::from(error).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Accepts every write, for example a file or /dev/null.
    File,
    /// A pipe of this size, and whether it was reduced to the minimum size. Such a pipe
    /// is writable only after everything in it was read.
    Pipe { size: usize, small: bool },
    /// May block the writer, for example a terminal or a socket.
    Other,
}

/// Standard output.
pub(super) struct Outlet {
    file: File,
    kind: Kind,
    written: u64,
    elements: u64,
    /// The last writes.
    writes: Writes,
    /// Whether a pipe stays at its minimum size, so that it shows when all was read.
    stays_small: bool,
}

impl Outlet {
    /// Takes over standard output. No other code of this process may write to it.
    pub fn new(stays_small: bool) -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        expect_output(&file)?;
        let metadata = file.metadata()?;
        let kind = if metadata.file_type().is_fifo() {
            // Another process of this kind may have reduced it already.
            let size = pipe_size(&file, FcntlArg::F_GETPIPE_SZ).unwrap_or(0).max(DEFAULT_SIZE);
            Kind::Pipe { size, small: pipe_size(&file, to_size(PAGE)).is_ok() }
        } else if metadata.is_file() {
            Kind::File
        } else {
            Kind::Other
        };
        let writes = Writes::default();
        Ok(Self { file, kind, written: 0, elements: 0, writes, stays_small })
    }

    /// Returns the number of written bytes that may be unread. Another process that writes
    /// to the same pipe may have changed its size.
    pub fn capacity(&self) -> usize {
        match self.kind {
            Kind::Pipe { size, .. } => {
                pipe_size(&self.file, FcntlArg::F_GETPIPE_SZ).map_or(size, |now| now.max(PAGE))
            }
            Kind::File | Kind::Other => 0,
        }
    }

    /// Returns the total number of written bytes.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes elements, each followed by the separator. Returns when all are written, or
    /// as soon as `stop` is readable or closed. Blocks the thread.
    pub fn write<'a>(
        &mut self,
        elements: impl Iterator<Item = &'a [u8]>,
        separator: &[u8],
        stop: &PipeReader,
    ) -> Result<(), Ended> {
        self.make_small(stop)?;
        let mut text = Vec::new();
        for element in elements {
            if text.len() + element.len() + separator.len() > BLOCK {
                self.write_part(&text, stop)?;
                text.clear();
            }
            if element.len() + separator.len() > BLOCK {
                self.write_part(element, stop)?;
            } else {
                text.extend_from_slice(element);
            }
            text.extend_from_slice(separator);
            if self.goes_one_by_one() {
                self.write_part(&text, stop)?;
                text.clear();
            }
            self.elements += 1;
        }
        self.write_part(&text, stop)
    }

    /// Waits until the pipe can be reduced, because what other processes wrote to it before
    /// was read.
    fn make_small(&mut self, stop: &PipeReader) -> Result<(), Ended> {
        let Kind::Pipe { size, small: false } = self.kind else { return Ok(()) };
        let started = Instant::now();
        while self.elements == 0 && started.elapsed() < UNTIL_SMALL {
            match pipe_size(&self.file, to_size(PAGE)) {
                Ok(_) => {
                    self.kind = Kind::Pipe { size, small: true };
                    return Ok(());
                }
                Err(Errno::EBUSY) => self.wait_at_most(PollFlags::empty(), stop, TRY_AGAIN)?,
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn goes_one_by_one(&mut self) -> bool {
        let Kind::Pipe { small: true, size } = self.kind else { return false };
        let goes_on = self.elements < ONE_BY_ONE && self.written < ONE_BY_ONE_BYTES;
        if !goes_on && !self.stays_small {
            let _ = pipe_size(&self.file, to_size(size));
            self.kind = Kind::Pipe { small: false, size };
        }
        goes_on
    }

    fn write_part(&mut self, mut text: &[u8], stop: &PipeReader) -> Result<(), Ended> {
        let most = if self.kind == Kind::File { BLOCK } else { PAGE };
        while !text.is_empty() {
            match self.write_once(&text[..text.len().min(most)], stop)? {
                Ok(count) => {
                    self.written += count as u64;
                    if self.is_pipe() {
                        self.writes.add(&text[..count], self.capacity());
                    }
                    text = &text[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes once the output accepts it. Processes of this kind that share a pipe take
    /// turns while it has its minimum size. Otherwise two would find it empty, and its reader
    /// would read the elements of both.
    fn write_once(&mut self, text: &[u8], stop: &PipeReader) -> Result<io::Result<usize>, Ended> {
        let Kind::Pipe { small: true, .. } = self.kind else {
            self.wait(PollFlags::POLLOUT, stop)?;
            return Ok(self.file.write(text));
        };
        loop {
            self.drain(stop)?;
            self.lock(libc::F_WRLCK);
            let written = self.is_empty().then(|| self.file.write(text));
            self.lock(libc::F_UNLCK);
            if let Some(written) = written {
                return Ok(written);
            }
        }
    }

    /// Locks a pipe for as long as a write takes, or unlocks it.
    fn lock(&self, kind: i32) {
        let lock = libc::flock {
            l_type: i16::try_from(kind).unwrap_or_default(),
            l_whence: 0,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // A file system without locks has no other writers of this kind to wait for.
        while fcntl(&self.file, FcntlArg::F_SETLKW(&lock)) == Err(Errno::EINTR) {}
    }

    /// Returns whether a pipe of minimum size is empty. Another process may have restored its
    /// size. Then it can only be reduced again while it is nearly empty.
    fn is_empty(&self) -> bool {
        let is_small = pipe_size(&self.file, FcntlArg::F_GETPIPE_SZ).is_ok_and(|now| now <= PAGE)
            || pipe_size(&self.file, to_size(PAGE)).is_ok();
        let mut one = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        // Not if the reader is gone.
        is_small
            && poll(&mut one, PollTimeout::ZERO).is_ok()
            && one[0].revents() == Some(PollFlags::POLLOUT)
    }

    /// Returns whether the loss of the reader can be detected without writing.
    pub fn is_pipe(&self) -> bool {
        matches!(self.kind, Kind::Pipe { .. })
    }

    /// Waits until the pipe has no reader any more, or until `stop`. Blocks the thread.
    pub fn until_nobody_reads(&self, stop: &PipeReader) -> Ended {
        self.wait(PollFlags::empty(), stop).err().unwrap_or(Ended::Stopped)
    }

    /// Waits until a reader has read enough for the next element to follow. Blocks the
    /// thread.
    pub fn drain(&self, stop: &PipeReader) -> Result<(), Ended> {
        match self.kind {
            Kind::Pipe { small: true, .. } => loop {
                self.wait(PollFlags::POLLOUT, stop)?;
                if self.is_empty() {
                    return Ok(());
                }
                self.wait_at_most(PollFlags::empty(), stop, TRY_AGAIN)?;
            },
            _ => Ok(()),
        }
    }

    /// Waits for one of these events.
    fn wait(&self, events: PollFlags, stop: &PipeReader) -> Result<(), Ended> {
        self.wait_at_most(events, stop, PollTimeout::NONE)
    }

    /// Waits for one of these events, or for this number of milliseconds.
    fn wait_at_most(
        &self,
        events: PollFlags,
        stop: &PipeReader,
        limit: impl Into<PollTimeout> + Copy,
    ) -> Result<(), Ended> {
        if self.kind == Kind::File {
            return if is_ready(stop.as_fd())? { Err(Ended::Stopped) } else { Ok(()) };
        }
        let mut both =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.file.as_fd(), events)];
        loop {
            match poll(&mut both, limit) {
                Err(Errno::EINTR) => continue,
                Ok(0) => return Ok(()),
                other => other?,
            };
            if both[0].any() == Some(true) {
                return Err(Ended::Stopped);
            }
            let seen = both[1].revents().unwrap_or(PollFlags::empty());
            if matches!(self.kind, Kind::Pipe { .. }) && seen.contains(PollFlags::POLLERR) {
                return Err(Ended::NoReader);
            }
            // The next write reports any other error.
            if !seen.is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the maximum number of unread bytes. A pipe of minimum size accepts a write
    /// only after all bytes before it were read.
    pub fn perhaps_unread(&self) -> u64 {
        match self.kind {
            Kind::Pipe { small: false, .. } => self.written.min(self.capacity() as u64),
            Kind::Pipe { small: true, .. } => {
                if self.is_empty() {
                    0
                } else {
                    self.writes.last()
                }
            }
            Kind::File | Kind::Other => 0,
        }
    }

    /// Returns the number of unread bytes, which will never be read because the reader is
    /// gone. If the number is unknown, returns the maximum: an element twice is better than
    /// a lost one.
    pub fn unread(&self) -> u64 {
        match self.kind {
            Kind::Pipe { .. } => unread(&self.file, self.capacity(), &self.writes)
                .unwrap_or(self.written.min(self.capacity() as u64)),
            Kind::File | Kind::Other => 0,
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // The pipe may have other writers, so its original size is restored.
        if let Kind::Pipe { small: true, size } = self.kind {
            let _ = pipe_size(&self.file, to_size(size));
        }
    }
}

fn to_size(size: usize) -> FcntlArg<'static> {
    FcntlArg::F_SETPIPE_SZ(i32::try_from(size).unwrap_or(i32::MAX))
}

/// Reads or changes the size of a pipe. Returns the resulting size.
fn pipe_size(pipe: &File, what: FcntlArg<'_>) -> nix::Result<usize> {
    fcntl(pipe, what).map(|size| usize::try_from(size).unwrap_or(0))
}

/// Returns whether there is data to read, or no writer any more.
fn is_ready(descriptor: BorrowedFd<'_>) -> nix::Result<bool> {
    let mut one = [PollFd::new(descriptor, PollFlags::POLLIN)];
    Ok(poll(&mut one, PollTimeout::ZERO)? > 0)
}
