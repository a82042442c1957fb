//! The process of `hold --background` in the foreground: starts itself again as the process
//! that waits and holds, prints that the lock is held, and exits. See `background` for the
//! other process. A socket between them, which is the other's standard output, notifies each
//! of the other's end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::background::GO_ON;
use crate::cli::common::single_thread;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::signals::Signals;

/// Starts the process, and waits until it holds the lock.
pub(super) fn run() -> Result<(), Failure> {
    let mut signals = Signals::ending()?;
    single_thread()?.block_on(launch(&mut signals))
}

async fn launch(signals: &mut Signals) -> Result<(), Failure> {
    let (mut process, stream) = start().map_err(|error| not_started(&error))?;
    let mut lines = BufReader::new(stream).lines();
    let held = loop {
        tokio::select! {
            line = lines.next_line() => break line.ok().flatten(),
            signal = signals.next() => pass_on(&process, signal),
        }
    };
    let Some(held) = held else { return Err(ended(process.wait().await)) };
    let mut stream = lines.into_inner();
    if let Err(failure) = output::write(&format!("{held}\n")) {
        // The lock is released: no later step would do so.
        drop(stream);
        let _ = process.wait().await;
        return Err(failure);
    }
    let _ = stream.write_all(GO_ON).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    // Otherwise it has not left the streams of this process.
    if answer == GO_ON { Ok(()) } else { Err(ended(process.wait().await)) }
}

fn start() -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = Pair::pair()?;
    ours.set_nonblocking(true)?;
    let mut arguments = std::env::args_os().skip(1);
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("lockkeeper")
        .args(arguments.next())
        .arg("--in-background")
        .args(arguments)
        .stdout(OwnedFd::from(theirs));
    Ok((command.spawn()?, UnixStream::from_std(ours)?))
}

/// Passes a signal on to the process, which may have its own from the terminal.
fn pass_on(process: &Child, signal: Signal) {
    if let Some(pid) = process.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Returns the failure of a process that holds nothing. It has reported the cause.
fn ended(status: io::Result<ExitStatus>) -> Failure {
    match status {
        Ok(status) => match status.signal() {
            Some(signal) => Failure::new(
                Failure::of_status(status),
                format!("the background process was killed by signal {signal}"),
            ),
            None => Failure::silent(Failure::of_status(status)),
        },
        Err(error) => not_started(&error),
    }
}

fn not_started(error: &io::Error) -> Failure {
    let message = format!("the background process can't be started: {error}");
    Failure::new(Failure::UNAVAILABLE, message)
}
