//! Hearing of signals, and which ones there are: those that `exec` passes on to its
//! command, those that end. What is done with each is the verbs' own.

use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Those that are passed on to the command.
pub(super) const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// Those that ask to end.
pub(super) const ENDING: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Those that a terminal stops a job by. Who guards must not be stopped.
pub(super) const STOPPING: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// Signals that end nothing by themselves any more, but are heard of.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on these are only heard of. One that is ignored already (nohup,
    /// a job in the background of a script) stays so, for the command as well.
    pub fn listen(wanted: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        wanted
            .iter()
            .filter(|&&signal| ignored >> (signal as u32 - 1) & 1 == 0)
            .map(|&wanted| Ok((wanted, signal(SignalKind::from_raw(wanted as i32))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks to end. Cancel safe.
    pub async fn next_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }
}

/// The signals that this process was started to ignore, lowest bit first.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
