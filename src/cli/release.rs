//! `lockkeeper release`: releases the lock that `hold --background` holds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::asking::text;
use super::common::single_thread;
use super::failure::Failure;
use super::output;
use super::shell::quoted;
use super::state_file::{Found, LOST, Process, RELEASED, State};

/// Maximum time for the release and the end of the process. Longer than the broker's answer
/// takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `lockkeeper release`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the lock is released; 64 FILE can't be used; 69 not known, because the process that holds \
the lock does not answer; 75 that process still waits for the lock; 80 the lock was lost or released before; 81 FILE does not exist. With 0 and \
80 FILE is removed.")]
pub struct Arguments {
    /// File of hold --background
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    single_thread()?.block_on(release(&arguments.state))
}

async fn release(path: &Path) -> Result<(), Failure> {
    let Found { record, .. } = Found::open(path)?;
    let lock = record.lock();
    let unknown = |why: String| {
        let message = format!("whether {lock} is released is not known: {why}");
        Failure::new(Failure::UNAVAILABLE, message)
    };
    // A connection is the request. The hold must not find it later, when it has the lock.
    let is_waiting = record.state == State::Waiting;
    let socket = if is_waiting { record.socket.clone() } else { record.release_socket() };
    let stream = match record.connect(&socket) {
        Process::Here(_) if is_waiting => {
            let message = format!(
                "the lock of {} is not held yet: end its process {} to stop waiting",
                quoted(path),
                record.pid
            );
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
        Process::Here(stream) => stream,
        Process::Ended => return Err(ended(path)),
        Process::Elsewhere => return Err(unknown(record.elsewhere())),
        Process::Silent(error) => return Err(unknown(record.silent(&error))),
    };
    let answer = text(stream, PATIENCE).await;
    match answer.as_deref() {
        Ok(answer) => match (answer.strip_prefix(RELEASED), answer.strip_prefix(LOST)) {
            (Some(what), _) => output::write(&format!("released {what}\n")),
            (_, Some(message)) => Err(Failure::new(Failure::LOST, message)),
            // It has ended for another reason at the same time.
            (None, None) => Err(ended(path)),
        },
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(unknown(format!(
            "process {} did not end within {PATIENCE:?}. Kill it (kill -KILL {}): the broker then frees the slot",
            record.pid, record.pid
        ))),
        Err(_) => Err(ended(path)),
    }
}

/// Removes the file of a hold that has ended. Returns why it has.
fn ended(path: &Path) -> Failure {
    let found = match Found::open(path) {
        Ok(found) => found,
        Err(failure) => return failure,
    };
    let message = format!("the hold of {} had ended: {}", found.record.lock(), found.record.end());
    if let Err(error) = found.remove(path) {
        let message = format!("{message}; {} can't be removed: {error}", quoted(path));
        return Failure::new(Failure::LOST, message);
    }
    Failure::new(Failure::LOST, message)
}
