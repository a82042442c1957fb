//! Determines which process group owns the terminal while a command runs. Only the
//! terminal's foreground group may read it, and Ctrl-C goes to that group.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stdin};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Keeps the terminal from stopping this process, and threads started from now on, while
/// another group is in the foreground. Child processes inherit this; see [`like_others`].
pub(super) fn unstoppable() {
    // Fails only for a signal that does not exist.
    let _ = stopping().thread_block();
}

/// Undoes [`unstoppable`] in the process that starts the command.
pub(super) fn like_others() {
    let _ = stopping().thread_unblock();
}

/// Returns the signals that would stop this process. TTOU: it hands the terminal to
/// another group. TTIN: a process of its group reads the terminal at the same time, for
/// example a pager at the end of a pipeline.
fn stopping() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTTOU);
    set.add(Signal::SIGTTIN);
    set
}

/// The process that may read the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreground {
    /// The command.
    Command,
    /// Another process group: `exec` is in the background, or its own group reads.
    Other,
    /// No process: there is no terminal, or no longer.
    Gone,
}

/// The terminal of this process. When dropped, the terminal returns to this process's
/// group, unless a shell has taken it since.
pub(super) struct Terminal {
    command: Pid,
    is_lent: bool,
}

impl Terminal {
    /// Creates the terminal for a command in this group.
    pub fn of(command: Pid) -> Self {
        Self { command, is_lent: false }
    }

    /// Lends the terminal to the command, if this process's group owns it (a background
    /// job has none). `is_wanted`: the command was stopped because it needs the terminal.
    pub fn lend(&mut self, is_wanted: bool) -> Foreground {
        let Some((terminal, foreground)) = open() else { return Foreground::Gone };
        if foreground == self.command {
            return Foreground::Command;
        }
        let is_ours = foreground == getpgrp() && (is_wanted || is_input());
        if !is_ours || tcsetpgrp(terminal, self.command).is_err() {
            return Foreground::Other;
        }
        self.is_lent = true;
        Foreground::Command
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.is_lent {
            return;
        }
        let Some((terminal, foreground)) = open() else { return };
        let is_free = || killpg(foreground, None) == Err(Errno::ESRCH);
        if foreground == self.command || is_free() {
            let own = getpgrp();
            let _ = tcsetpgrp(terminal, own);
            if is_piped() {
                // A pager that tried to read in the meantime was stopped.
                let _ = killpg(own, Signal::SIGCONT);
            }
        }
    }
}

/// Opens the terminal of this session and returns its foreground group. Opened for each
/// check, because an open terminal would outlive its window.
fn open() -> Option<(File, Pid)> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let terminal =
        OpenOptions::new().read(true).custom_flags(flags.bits()).open("/dev/tty").ok()?;
    let foreground = tcgetpgrp(&terminal).ok()?;
    Some((terminal, foreground))
}

/// Returns whether the command gets the terminal from its start. If the output is a pipe,
/// its reader may be a pager, which needs the keyboard too.
fn is_input() -> bool {
    stdin().is_terminal() && !is_piped()
}

fn is_piped() -> bool {
    std::fs::metadata("/proc/self/fd/1").is_ok_and(|file| file.file_type().is_fifo())
}
