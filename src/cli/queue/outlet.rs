//! Standard output as the destination of taken elements. Shows at any moment which
//! elements have arrived, and can stop writing at any moment. See `get` for elements that
//! have not arrived.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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
    /// Number of bytes of the last write.
    last: u64,
    /// Whether a pipe stays at its minimum size, so that it shows when all was read.
    stays_small: bool,
}

impl Outlet {
    /// Takes over standard output. No other code of this process may write to it.
    pub fn new(stays_small: bool) -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let metadata = file.metadata()?;
        let kind = if metadata.file_type().is_fifo() {
            let size = pipe_size(&file, FcntlArg::F_GETPIPE_SZ).unwrap_or(16 * PAGE);
            Kind::Pipe { size, small: pipe_size(&file, to_size(PAGE)).is_some() }
        } else if metadata.is_file() {
            Kind::File
        } else {
            Kind::Other
        };
        Ok(Self { file, kind, written: 0, elements: 0, last: 0, stays_small })
    }

    /// Number of written bytes that may be unread.
    pub fn capacity(&self) -> usize {
        match self.kind {
            Kind::Pipe { size, .. } => size,
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

    fn goes_one_by_one(&mut self) -> bool {
        let Kind::Pipe { small: true, size } = self.kind else { return false };
        let goes_on = self.elements < ONE_BY_ONE && self.written < ONE_BY_ONE_BYTES;
        if !goes_on && !self.stays_small {
            pipe_size(&self.file, to_size(size));
            self.kind = Kind::Pipe { small: false, size };
        }
        goes_on
    }

    fn write_part(&mut self, mut text: &[u8], stop: &PipeReader) -> Result<(), Ended> {
        let most = if self.kind == Kind::File { BLOCK } else { PAGE };
        while !text.is_empty() {
            self.wait(PollFlags::POLLOUT, stop)?;
            match self.file.write(&text[..text.len().min(most)]) {
                Ok(count) => {
                    self.last = count as u64;
                    self.written += self.last;
                    text = &text[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
            Kind::Pipe { small: true, .. } => self.wait(PollFlags::POLLOUT, stop),
            _ => Ok(()),
        }
    }

    /// Waits for one of these events.
    fn wait(&self, events: PollFlags, stop: &PipeReader) -> Result<(), Ended> {
        if self.kind == Kind::File {
            return if is_ready(stop.as_fd())? { Err(Ended::Stopped) } else { Ok(()) };
        }
        let mut both =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.file.as_fd(), events)];
        loop {
            match poll(&mut both, PollTimeout::NONE) {
                Err(nix::Error::EINTR) => continue,
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
            Kind::Pipe { size, small: false } => self.written.min(size as u64),
            Kind::Pipe { small: true, .. } => {
                let mut one = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
                let ready = poll(&mut one, PollTimeout::ZERO);
                // Not if the reader is gone.
                let is_drained = ready.is_ok() && one[0].revents() == Some(PollFlags::POLLOUT);
                if is_drained { 0 } else { self.last }
            }
            Kind::File | Kind::Other => 0,
        }
    }

    /// Returns the number of unread bytes, which will never be read because the reader is
    /// gone, and removes them from the pipe. If the number is unknown, returns the
    /// maximum: an element twice is better than a lost one.
    pub fn unread(&self) -> u64 {
        let Kind::Pipe { size, .. } = self.kind else { return 0 };
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut options = std::fs::OpenOptions::new();
        let pipe = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
        let Ok(mut pipe) = pipe else { return self.written.min(size as u64) };
        let (mut count, mut buffer) = (0, vec![0; PAGE]);
        while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
            count += bytes as u64;
        }
        count.min(self.written)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // The pipe may have other writers, so its original size is restored.
        if let Kind::Pipe { small: true, size } = self.kind {
            pipe_size(&self.file, to_size(size));
        }
    }
}

fn to_size(size: usize) -> FcntlArg<'static> {
    FcntlArg::F_SETPIPE_SZ(i32::try_from(size).unwrap_or(i32::MAX))
}

/// Reads or changes the size of a pipe. Returns the resulting size.
fn pipe_size(pipe: &File, what: FcntlArg<'_>) -> Option<usize> {
    fcntl(pipe, what).ok().and_then(|size| usize::try_from(size).ok())
}

/// Returns whether there is data to read, or no writer any more.
fn is_ready(descriptor: BorrowedFd<'_>) -> nix::Result<bool> {
    let mut one = [PollFd::new(descriptor, PollFlags::POLLIN)];
    Ok(poll(&mut one, PollTimeout::ZERO)? > 0)
}
