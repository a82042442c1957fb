//! Whose the terminal is while a command runs: its foreground process group is
//! the one that may read and that Ctrl-C goes to.

use std::io::{IsTerminal, stdin};
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{tcgetpgrp, tcsetpgrp};

use super::group::Group;

/// Lets this process, and threads it starts from now on, use the terminal while
/// another group has it. Processes started from here inherit that; see
/// [`like_others`].
pub(super) fn unstoppable() {
    // Fails only for a signal that doesn't exist.
    let _ = stopping().thread_block();
}

/// Undoes [`unstoppable`] in the process that starts the command.
pub(super) fn like_others() {
    let _ = stopping().thread_unblock();
}

fn stopping() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTTOU);
    set
}

/// The terminal in another group's hands, until this is dropped.
pub(super) struct Lent(Group);

impl Lent {
    /// Hands the terminal of standard input over, if there is one and it is ours
    /// to give: a job in the background has none.
    pub fn to(group: Group) -> Option<Self> {
        let own = Group::own();
        // Whoever reads our output may be a pager, which wants the keyboard too.
        let is_piped =
            std::fs::metadata("/proc/self/fd/1").is_ok_and(|file| file.file_type().is_fifo());
        let ours = !is_piped && stdin().is_terminal() && tcgetpgrp(stdin()) == Ok(own.id());
        (ours && tcsetpgrp(stdin(), group.id()).is_ok()).then_some(Self(own))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // It may have gone away meanwhile.
        let _ = tcsetpgrp(stdin(), self.0.id());
    }
}
