//! Signal handling: the signals that `exec` forwards to its command, and those that end
//! the process. See the commands for how each is handled.

use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};

use super::failure::Failure;

/// Signals that end a process unless it handles them, without those of a fault, and without
/// SIGKILL. A process that such a signal ends first gives back its slot or elements.
pub(super) const ENDING: [Signal; 11] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGSTKFLT,
    Signal::SIGXCPU,
];

/// Signals that do not request to end a command: each command gives them a meaning, also
/// if their default action is to end it.
const OTHERS: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH, Signal::SIGCONT];

/// Signals that end what waits or holds.
pub(super) const INTERRUPTING: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// Signals by which a terminal stops a job. A guardian must not be stopped.
pub(super) const STOPPING: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// Makes the ends of child processes known. The program that started this one may have
/// ignored them, and the kernel would then discard their results. Children get the default
/// back.
pub(super) fn notice_children() {
    let child = [Signal::SIGCHLD];
    // Fails only for a signal that does not exist.
    let _ = SigSet::from_iter(child).thread_unblock();
    // The handler remains. At a limit on descriptors, what starts a process fails as well.
    let _ = Signals::subscribe(child.into_iter());
}

/// Signals that are received here, and no longer have their default effect.
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// Those that do not request to end.
    others: &'static [Signal],
}

impl Signals {
    /// Subscribes to these signals, which no longer end the process. A signal that is
    /// ignored already (nohup, a background job of a script) stays ignored, also for the
    /// command. SIGPIPE is an exception: the standard library replaces its action before `main`
    /// and gives each command the default, so the earlier one is not known.
    ///
    /// Call it before a runtime with several threads starts. The handler of a signal is
    /// installed before its action is known and before tokio subscribes to it. A signal in
    /// between is lost, so this thread blocks it until then.
    pub fn listen(wanted: &[Signal]) -> Result<Self, Failure> {
        let streams = Self::subscribe_blocked(wanted).map_err(|error| {
            Failure::new(Failure::UNAVAILABLE, format!("signals can't be received: {error}"))
        })?;
        Ok(Self { streams, others: &[] })
    }

    /// Subscribes to every signal that would end this process, and that it can handle.
    pub fn ending() -> Result<Self, Failure> {
        Self::listen(&[&ENDING[..], &OTHERS[..2]].concat())
    }

    /// Subscribes to the signals that are forwarded to a command.
    pub fn forwarded() -> Result<Self, Failure> {
        let signals = Self::listen(&[&ENDING[..], &OTHERS].concat())?;
        Ok(Self { others: &OTHERS, ..signals })
    }

    fn subscribe_blocked(wanted: &[Signal]) -> io::Result<Vec<(Signal, unix::Signal)>> {
        let ignored = ignored();
        let wanted = wanted.iter().copied();
        let wanted: Vec<Signal> =
            wanted.filter(|&signal| ignored >> (signal as u32 - 1) & 1 == 0).collect();
        let blocked: SigSet = wanted.iter().copied().collect();
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let streams = Self::subscribe(wanted.into_iter());
        before.thread_set_mask()?;
        streams
    }

    fn subscribe(wanted: impl Iterator<Item = Signal>) -> io::Result<Vec<(Signal, unix::Signal)>> {
        // Its driver never runs: the runtime that starts later passes on what arrives now.
        let idle = match Handle::try_current() {
            Ok(_) => None,
            Err(_) => Some(Builder::new_current_thread().enable_io().build()?),
        };
        let _context = idle.as_ref().map(Runtime::enter);
        wanted.map(|wanted| Ok((wanted, signal(SignalKind::from_raw(wanted as i32))?))).collect()
    }

    /// Returns the next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the next signal that requests to end. Cancel safe.
    pub async fn next_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if !self.others.contains(&signal) {
                return signal;
            }
        }
    }
}

/// Makes a write beyond the limit of file sizes fail, instead of ending the process with
/// SIGXFSZ and losing the elements that it holds. Commands that it starts have the default again.
pub(super) fn survive_file_size_limit() {
    // Without a descriptor left for the handler, the command itself reports that.
    let _ = Signals::listen(&[Signal::SIGXFSZ]);
}

/// Returns the signals that this process was started to ignore, lowest bit first.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_signal_before_the_runtime_starts_is_received_by_it() {
        let mut signals = Signals::listen(&[Signal::SIGUSR2]).unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        let runtime = Runtime::new().unwrap();
        let received = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), signals.next()).await
        });
        assert_eq!(received, Ok(Signal::SIGUSR2));
    }
}
