//! What happens to the command of `lockkeeper exec` when its lock ends, and messages about
//! it that never delay its handling.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write, stderr};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::time::{sleep, timeout};

use super::on_lost::OnLost;
use crate::cli::common::duration;

/// Maximum time for which a message waits for the reader of stderr.
const PATIENCE: Duration = Duration::from_millis(100);

/// Pause between two attempts to write.
const PAUSE: Duration = Duration::from_millis(10);

/// How the command is signalled and ended.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Command handling")]
pub(super) struct Outcome {
    /// Time between TERM and KILL; at most a third of the lock's remaining validity when
    /// the command starts
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub kill_after: Duration,

    /// What to do if the semaphore is shrunk below the held slot: let the command finish,
    /// or stop it
    #[arg(long, value_enum, default_value_t = OnDrain::Finish)]
    pub on_drain: OnDrain,

    /// What to do if the lock is lost: terminate (TERM, then KILL), kill (KILL),
    /// signal=USR1 (or another signal), or warn (print a message)
    #[arg(long, value_name = "WHAT", default_value_t = OnLost::Terminate)]
    pub on_lost: OnLost,
}

/// What to do if the held slot is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnDrain {
    /// Let the command finish; no other client gets the slot until then
    Finish,
    /// Send TERM to the command, then KILL
    Stop,
}

/// Prints a message to stderr. Waits only briefly, so that a stalled reader does not
/// delay the handling of the command. Needs no thread: the process may be at its limit.
pub(super) async fn say(text: String) {
    let line = format!("lockkeeper: {text}\n");
    let _ = timeout(PATIENCE, async {
        while matches!(write(line.as_bytes()), Err(error) if error.kind() == ErrorKind::WouldBlock)
        {
            sleep(PAUSE).await;
        }
    })
    .await;
}

/// Writes to stderr if that does not block.
fn write(line: &[u8]) -> io::Result<()> {
    let file = std::fs::metadata("/proc/self/fd/2")?.file_type();
    if file.is_fifo() || file.is_char_device() {
        // Others use the same description, so it must stay as it is. A file is not opened
        // again, because its position is that of the description.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let mut options = OpenOptions::new();
        let again = options.write(true).custom_flags(flags.bits()).open("/proc/self/fd/2");
        // A terminal of another user, or no descriptor left.
        if let Ok(mut again) = again {
            return again.write_all(line);
        }
    }
    let stderr = stderr();
    let mut one = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut one, PollTimeout::ZERO)? == 0 {
        return Err(ErrorKind::WouldBlock.into());
    }
    stderr.lock().write_all(line)
}
