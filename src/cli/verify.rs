//! `lockkeeper verify`: asks the surrounding `exec` whether its lock is still held. See
//! `semaphore verify` and `mutex verify` for locks of others.

use super::common::say;
use super::exec::{Answer, SOCKET, ask};
use super::failure::Failure;
use super::target::variable;

/// Arguments of `lockkeeper verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the lock is held, also if its slot was removed and is to be released soon; 64 not \
inside exec; 69 not known, because the broker or exec does not answer; 80 the lock was lost.")]
pub struct Arguments {}

pub(super) fn run(_: &Arguments) -> Result<(), Failure> {
    let Some(socket) = variable(SOCKET)? else {
        let message = format!("{SOCKET} is not set: run this in a command of lockkeeper exec");
        return Err(Failure::new(Failure::USAGE, message));
    };
    let name = variable("LOCK_NAME")?.unwrap_or_else(|| "the lock".to_owned());
    let unknown = |why: String| {
        Failure::new(
            Failure::UNAVAILABLE,
            format!("whether {name} is still held is not known: {why}"),
        )
    };
    match ask(&socket) {
        Ok(Answer::Held) => Ok(()),
        Ok(Answer::Draining) => {
            say(format!("{name} is still held, but its slot was removed: release it soon"));
            Ok(())
        }
        Ok(Answer::Lost(reason)) => {
            Err(Failure::new(Failure::LOST, format!("{name} was lost: {reason}")))
        }
        Ok(Answer::Unknown(why)) => Err(unknown(why)),
        Err(error) => Err(unknown(format!("exec does not answer ({error})"))),
    }
}
