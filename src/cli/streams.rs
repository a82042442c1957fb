//! The standard streams as files: reads standard input and writes standard output without
//! a buffer, so that every failure is noticed. See `output` for formats, and
//! `queue::outlet` for the elements of a queue.

use std::fs::File;
use std::io::{self, ErrorKind, Read, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{SFlag, fstat};

use super::failure::Failure;

/// Why a stream without a file can't be used.
const NO_FILE: &str = "it is closed, or is /dev/null opened for both reading and writing";

/// Standard input.
pub(super) struct Stdin(File);

impl Stdin {
    /// Opens standard input.
    ///
    /// # Errors
    ///
    /// Standard input was closed when the process was started, or is open for writing
    /// only. Both would look like an empty input.
    pub fn open() -> io::Result<Self> {
        let file = File::from(stdin().as_fd().try_clone_to_owned()?);
        must_be_open(&file)?;
        if access(&file)? == OFlag::O_WRONLY {
            return Err(Errno::EBADF.into());
        }
        Ok(Self(file))
    }

    /// Opens standard input, or fails with the exit code for input.
    pub fn open_or_fail() -> Result<Self, Failure> {
        Self::open().map_err(|error| unreadable(&error))
    }
}

impl Read for &Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.0).read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process has made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(self.0.as_fd(), PollFlags::POLLIN)?;
                }
                other => return other,
            }
        }
    }
}

/// Failure to read standard input.
pub(super) fn unreadable(error: &io::Error) -> Failure {
    Failure::new(Failure::CANT_READ, format!("standard input can't be read: {error}"))
}

/// Writes to standard output.
///
/// The standard library's own writer keeps text without a newline until the process ends,
/// and reports success for a descriptor that is not open for writing.
///
/// # Errors
///
/// As [`unwritable`].
pub(super) fn write(bytes: &(impl AsRef<[u8]> + ?Sized)) -> Result<(), Failure> {
    let mut left = bytes.as_ref();
    while !left.is_empty() {
        match nix::unistd::write(stdout(), left) {
            Ok(count) => left = &left[count..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                wait(stdout().as_fd(), PollFlags::POLLOUT)
                    .map_err(|error| unwritable(&error, ""))?;
            }
            Err(error) => return Err(unwritable(&error.into(), "")),
        }
    }
    Ok(())
}

/// Failure to write standard output, with what follows from it. Silent if its reader has
/// ended, as after the signal SIGPIPE.
pub(super) fn unwritable(error: &io::Error, then: &str) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe && then.is_empty() {
        return Failure::silent(Failure::NO_READER);
    }
    Failure::new(Failure::CANT_CREATE, format!("standard output can't be written: {error}{then}"))
}

/// Checks that standard output can be written, before anything is taken that only it
/// receives. A full disk shows itself only later.
///
/// # Errors
///
/// Standard output was closed when the process was started, is open for reading only, or
/// has no reader any more.
pub(super) fn expect_output(output: &File) -> io::Result<()> {
    must_be_open(output)?;
    if access(output)? == OFlag::O_RDONLY {
        return Err(Errno::EBADF.into());
    }
    if has_no_reader(output)? { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// Returns whether this is a pipe whose readers have all closed it.
pub(super) fn has_no_reader(output: impl AsFd) -> io::Result<bool> {
    let is_fifo =
        SFlag::from_bits_truncate(fstat(&output)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO;
    let mut one = [PollFd::new(output.as_fd(), PollFlags::empty())];
    poll(&mut one, PollTimeout::ZERO)?;
    Ok(is_fifo && one[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLERR)))
}

/// Rejects a descriptor that was closed when the process was started.
///
/// Before `main`, the runtime opens /dev/null for reading and writing in its place. No other
/// trace of the closed descriptor is left, and code before the runtime would be unsafe. A
/// shell's `</dev/null` and `>/dev/null` open it for reading or for writing. Some programs
/// open it for both and pass it on: daemon(3), Python's `DEVNULL`, and runc for a container
/// without input. So this check is only for commands that take elements for their output, or
/// for which the end of the input has a meaning. There an error by mistake changes nothing,
/// and a missing one loses elements or closes a queue.
fn must_be_open(stream: &File) -> io::Result<()> {
    let metadata = stream.metadata()?;
    let is_null = metadata.file_type().is_char_device()
        && std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == metadata.rdev());
    if is_null && access(stream)? == OFlag::O_RDWR {
        return Err(io::Error::other(NO_FILE));
    }
    Ok(())
}

/// Returns whether a descriptor is open for reading, writing, or both.
fn access(stream: &File) -> io::Result<OFlag> {
    Ok(OFlag::from_bits_truncate(fcntl(stream, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE)
}

/// Blocks the thread until one of these events.
fn wait(stream: BorrowedFd<'_>, events: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::new(stream, events)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Exit code after a write to a pipe without a reader, as after the signal that the
/// process ignores.
const _: () = assert!(Failure::NO_READER as i32 == 128 + Signal::SIGPIPE as i32);
