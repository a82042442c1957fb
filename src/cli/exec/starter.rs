//! The process that becomes the command: started with its guardian, it waits until the lock
//! is held, and replaces itself by the command. So nothing is held yet if a limit on
//! processes prevents it, and no start of a process delays the command afterwards.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::environment::Environment;
use super::pipes::{self, Launch, inherited};
use crate::cli::failure::Failure;
use crate::cli::processes::Awaited;
use crate::cli::script::by_the_shell;

/// Arguments of `lockkeeper starter`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of the pipe from the guardian
    #[arg(long)]
    orders: i32,

    /// Command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Starts the process that becomes the command. Returns it with the pipe that orders it to.
pub(super) fn start(
    awaited: &Awaited,
    command: &[OsString],
) -> io::Result<(tokio::process::Child, PipeWriter)> {
    let (from_us, starter) = io::pipe()?;
    inherited(&from_us)?;
    let mut process = tokio::process::Command::new("/proc/self/exe");
    process
        .arg0("lockkeeper")
        .arg("starter")
        .arg(format!("--orders={}", from_us.as_raw_fd()))
        .arg("--")
        .args(command);
    let child = awaited.start(|| process.spawn(), tokio::process::Child::id)?;
    Ok((child, starter))
}

/// Orders the starter to become the command.
pub(super) fn launch_command(mut starter: PipeWriter, launch: &Launch) {
    if let Ok(environment) = serde_json::to_string(&launch.environment) {
        // Fails if the starter has ended, which the main loop notices.
        let _ = starter.write_all(format!("{environment}\n").as_bytes());
    }
}

/// Waits for the environment, and becomes the command.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<Infallible, Failure> {
    // The kernel kills the command with its guardian if nothing else can, for example when
    // guardian and exec are killed together. Not inherited by what the command starts.
    let bound = set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    let mut line = String::new();
    bound
        .and_then(|()| pipes::open_blocking(arguments.orders))
        .and_then(|pipe| BufReader::new(pipe).read_line(&mut line))
        .map_err(|error| {
            Failure::new(Failure::UNAVAILABLE, format!("the command can't be started: {error}"))
        })?;
    // The guardian ended, before or after this process could notice: there is no lock.
    let Ok(environment) = serde_json::from_str::<Environment>(&line) else {
        return Err(Failure::silent(Failure::UNAVAILABLE));
    };
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Failure::new(Failure::USAGE, "there is no command"));
    };
    let become_it = |mut command: Command| {
        environment.apply(&mut command);
        command.args(rest).exec()
    };
    let mut error = become_it(Command::new(program));
    if let Some(shell) = by_the_shell(program, &error) {
        error = become_it(shell);
    }
    Err(Failure::not_started(program, &error))
}
