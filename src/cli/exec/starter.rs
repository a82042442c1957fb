//! The process that becomes the command: started with its guardian, it waits until the lock
//! is held, and replaces itself by the command. So nothing is held yet if a limit on
//! processes prevents it, and no start of a process delays the command afterwards.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::pipes;
use crate::cli::failure::Failure;

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

/// The variables that the command's environment has in addition, and those that it must not
/// have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Environment(Vec<(String, Option<String>)>);

impl Environment {
    /// Sets a variable, or removes it.
    pub fn set(&mut self, name: &str, value: Option<String>) {
        self.0.push((name.to_owned(), value));
    }

    fn apply(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
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
    let mut command = Command::new(program);
    command.args(rest);
    environment.apply(&mut command);
    Err(Failure::not_started(program, &command.exec()))
}
