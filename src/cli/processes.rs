//! The descendants of this process: sends signals to all of them, finds out whether one is
//! left, and reaps orphans. See `table` for how processes are listed, and `exec` and
//! `queue run` for when they are signalled.
//!
//! A process group is not enough: `timeout`, `setsid` and a shell with job control move
//! processes into other groups, and a first process may end before those that it started.
//! This process is therefore a child subreaper: an orphan among its descendants becomes its
//! child.

mod ending;
mod table;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};

use super::signals::ENDING;
pub(super) use ending::{Ending, LOOK, Progress};
use table::{Process, Table};

/// Number of passes over the processes before a kill. Each pass stops those that started
/// since the one before. A pass that finds no new one is the last.
const PASSES: usize = 20;

/// Finds children that have ended, without waiting for one and without reaping it.
const ENDED: WaitPidFlag =
    WaitPidFlag::WEXITED.union(WaitPidFlag::WNOHANG).union(WaitPidFlag::WNOWAIT);

/// Interval of checks whether a watched process has ended.
const WATCHING: Duration = Duration::from_millis(250);

/// Number of processes that a message names.
const NAMED: usize = 5;

/// The descendants of this process that belong to its commands.
#[derive(Clone, Debug)]
pub(super) struct Descendants {
    own: i32,
    /// Children that are not the commands', and so are their descendants. A shell script
    /// can have children already when it replaces itself by this program.
    others: BTreeSet<ProcessId>,
    /// A process group to signal if the processes cannot be listed.
    group: Option<Pid>,
    awaited: Awaited,
}

/// The pid and the start of a process. A pid is used again.
type ProcessId = (i32, u64);

impl Descendants {
    /// Makes this process the subreaper of its descendants. Call it before the first
    /// command is started. Fails without `/proc`, where no descendant can be found.
    pub fn adopt() -> io::Result<Self> {
        set_child_subreaper(true)?;
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let table = Table::read().map_err(|error| {
            io::Error::new(error.kind(), format!("/proc can't be read: {error}"))
        })?;
        let others = table.children(own).map(Process::id).collect();
        Ok(Self { own, others, group: None, awaited: Awaited::default() })
    }

    /// Returns the children that some task waits for.
    pub fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    /// Signals this process group if the processes cannot be listed.
    pub fn with_group(self, group: Pid) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Excludes what the earlier children left to this process as its subreaper. Call it
    /// while `guardian` lives, which adopts the command's orphans until then.
    pub fn exclude_orphans_beside(&mut self, guardian: i32) {
        if self.others.is_empty() {
            return;
        }
        let Ok(table) = Table::read() else { return };
        let orphans: Vec<ProcessId> = table
            .children(self.own)
            .filter(|child| child.pid != guardian)
            .map(Process::id)
            .collect();
        // Otherwise some of them may be the command's.
        if table::is_alive(guardian) {
            self.others.extend(orphans);
        }
    }

    /// Returns whether none is left. False while the end of a child was not noticed yet.
    pub fn are_gone(&self) -> bool {
        self.awaited.reap();
        // Exact, as orphans become children: without a child there is no descendant.
        if waitid(Id::All, ENDED) == Err(Errno::ECHILD) {
            return true;
        }
        // A list is not: it misses a process that starts while it is read and whose parent ends.
        let is_none_listed = || self.living().is_ok_and(|living| living.is_empty());
        !self.others.is_empty() && is_none_listed() && is_none_listed()
    }

    /// Names those that are alive: the program and pid of each of the first few. Empty if
    /// there are none.
    pub fn names(&self) -> String {
        let Ok(living) = self.living() else { return "not known without /proc".to_owned() };
        let mut names: Vec<String> =
            living.iter().take(NAMED).map(|process| table::name(process.pid)).collect();
        if living.len() > NAMED {
            names.push(format!("and {} more", living.len() - NAMED));
        }
        names.join(", ")
    }

    /// Sends a signal to each process, except to the command of a nested `exec`, which
    /// passes the signal on to it. A process that may not be signalled stays, see
    /// [`Self::names`].
    ///
    /// One pass only: a process that starts in response to the signal is not meant.
    pub fn signal(&self, signal: Signal) {
        match self.read(Reach::Signalled) {
            Ok(processes) => processes.iter().for_each(|process| send(process, signal)),
            Err(_) => self.signal_group(signal),
        }
    }

    /// Passes a signal on to each process, which is continued if that signal requests it to
    /// end: a stopped process would not react.
    pub fn pass_on(&self, signal: Signal) {
        self.signal(signal);
        if ENDING.contains(&signal) {
            self.signal(Signal::SIGCONT);
        }
    }

    /// Kills each process, also those that start during the kill.
    pub fn kill(&self) {
        let mut found: BTreeSet<ProcessId> = BTreeSet::new();
        let mut processes = Vec::new();
        for _ in 0..PASSES {
            let Ok(living) = self.living() else {
                self.signal_group(Signal::SIGKILL);
                break;
            };
            let new: Vec<Process> =
                living.into_iter().filter(|process| found.insert(process.id())).collect();
            if new.is_empty() {
                break;
            }
            // A stopped process starts no other.
            for process in &new {
                send(process, Signal::SIGSTOP);
            }
            processes.extend(new);
        }
        for process in &processes {
            send(process, Signal::SIGKILL);
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Fails if the group has ended, or may not be signalled.
            let _ = killpg(group, signal);
        }
    }

    fn living(&self) -> io::Result<Vec<Process>> {
        self.read(Reach::All)
    }

    fn read(&self, reach: Reach) -> io::Result<Vec<Process>> {
        Ok(Table::read()?.descendants(self.own, &self.others, |process| match reach {
            Reach::All => false,
            // A guardian is the leader of its group. That of this process is its child.
            Reach::Signalled => {
                process.is_leader() && process.parent != self.own && table::is_guardian(process.pid)
            }
        }))
    }
}

/// Which descendants are meant.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// Without those of a nested `exec`.
    Signalled,
}

/// A process that is watched for its end. It may be anyone's, and is not signalled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched(ProcessId);

impl Watched {
    /// Finds the living process with this pid.
    pub fn find(pid: i32) -> Option<Self> {
        table::find(pid).map(|process| Self(process.id()))
    }

    /// Returns its pid.
    pub fn pid(self) -> i32 {
        self.0.0
    }

    /// Waits for its end. A later process with its pid is another one. Cancel safe.
    pub async fn ended(self) {
        while table::find(self.pid()).is_some_and(|process| process.id() == self.0) {
            tokio::time::sleep(WATCHING).await;
        }
    }
}

/// Whether this process is the current one or descends from it.
pub(super) fn is_of_this_process(pid: i32) -> bool {
    table::descends_from(pid, std::process::id().cast_signed())
}

fn send(process: &Process, signal: Signal) {
    // It may have ended, or belong to another user.
    let _ = kill(Pid::from_raw(process.pid), signal);
}

/// The children of this process for whose end some task waits. All others are orphans,
/// which only this process can reap.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(Arc<Mutex<BTreeSet<i32>>>);

impl Awaited {
    /// Starts a child. [`Self::reap`] leaves it to the task that waits for it.
    pub fn start<T>(
        &self,
        start: impl FnOnce() -> io::Result<T>,
        pid: impl FnOnce(&T) -> Option<u32>,
    ) -> io::Result<T> {
        // Locked until then: it may end before its pid is known.
        let mut awaited = self.lock();
        let child = start()?;
        awaited.extend(pid(&child).and_then(|pid| i32::try_from(pid).ok()));
        Ok(child)
    }

    /// Removes a child whose end was noticed.
    pub fn ended(&self, pid: i32) {
        self.lock().remove(&pid);
    }

    /// Reaps orphans whenever a child ends. Cancel safe.
    pub async fn reap_others(&self) -> Infallible {
        let Ok(mut children) = unix::signal(SignalKind::child()) else {
            return std::future::pending().await;
        };
        loop {
            self.reap();
            if children.recv().await.is_none() {
                return std::future::pending().await;
            }
        }
    }

    /// Reaps orphans that have ended, up to the first ended child that a task waits for.
    /// The next call continues.
    fn reap(&self) {
        let awaited = self.lock();
        while let Ok(ended) = waitid(Id::All, ENDED) {
            match ended.pid() {
                Some(pid) if !awaited.contains(&pid.as_raw()) => {
                    if waitpid(pid, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
