//! `lockkeeper verify`: asks the surrounding `exec`, or a hold in the background, whether its
//! lock is still held. See `semaphore verify` and `mutex verify` for locks of others.

use std::io;
use std::path::{Path, PathBuf};

use super::asking::{Answer, SOCKET, answer, ask};
use super::common::{say, single_thread};
use super::failure::Failure;
use super::shell::quoted;
use super::state_file::{Found, Process, State};
use super::target::variable;

/// Arguments of `lockkeeper verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the lock is held, also if its slot was removed and is to be released soon; 64 not \
inside exec, or FILE can't be used; 69 not known, because the broker or the process that holds the lock does not answer; \
75 that process still waits for the lock; 80 the lock was lost, or its hold has ended; 81 FILE does not exist.")]
pub struct Arguments {
    /// File of hold --background. Without it, the lock of the surrounding exec is verified
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.state {
        Some(path) => single_thread()?.block_on(verify_hold(path)),
        None => verify_exec(),
    }
}

fn verify_exec() -> Result<(), Failure> {
    let Some(socket) = variable(SOCKET)? else {
        let message = format!(
            "{SOCKET} is not set: run this in a command of lockkeeper exec, or give --state"
        );
        return Err(Failure::new(Failure::USAGE, message));
    };
    let name = variable("LOCK_NAME")?.unwrap_or_else(|| "the lock".to_owned());
    let answer = single_thread()?.block_on(ask(&socket));
    judge(&name, answer.map_err(|error| format!("exec does not answer ({error})")))
}

async fn verify_hold(path: &Path) -> Result<(), Failure> {
    let Found { record, .. } = Found::open(path)?;
    let answer = match record.connect(&record.socket) {
        Process::Here(_) if record.state == State::Waiting => {
            let message = format!("the lock of {} is not held yet", quoted(path));
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
        Process::Here(stream) => match answer(stream).await {
            // It has ended since, or is about to.
            Ok(Answer::Unknown(why)) if why.is_empty() => return Err(ended(path)),
            Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(ended(path)),
            answer => answer.map_err(|error| record.silent(&error)),
        },
        Process::Ended => return Err(ended(path)),
        Process::Elsewhere => Err(record.elsewhere()),
        Process::Silent(error) => Err(record.silent(&error)),
    };
    judge(record.lock(), answer)
}

/// Returns why a hold has ended.
fn ended(path: &Path) -> Failure {
    match Found::open(path) {
        Ok(Found { record, .. }) => {
            let message = format!("the hold of {} has ended: {}", record.lock(), record.end());
            Failure::new(Failure::LOST, message)
        }
        Err(failure) => failure,
    }
}

/// Reports the answer about the lock of this name, or why there is none.
fn judge(name: &str, answer: Result<Answer, String>) -> Result<(), Failure> {
    match answer {
        Ok(Answer::Held) => Ok(()),
        Ok(Answer::Draining) => {
            say(format!("{name} is still held, but its slot was removed: release it soon"));
            Ok(())
        }
        Ok(Answer::Lost(reason)) => {
            Err(Failure::new(Failure::LOST, format!("{name} was lost: {reason}")))
        }
        Ok(Answer::Unknown(why)) | Err(why) => Err(Failure::new(
            Failure::UNAVAILABLE,
            format!("whether {name} is still held is not known: {why}"),
        )),
    }
}
