//! The guardian: the process between `exec` and the command. It starts the
//! command, exits as it does, and ends it by itself when `exec` is gone or
//! doesn't answer any more, before the lock may be another's.
//!
//! `exec` talks to it over a pipe, in lines: `valid <nanoseconds>`, the moment
//! until which the lock is proven, and `ending`, when `exec` has begun to end
//! the command itself. The command is started after the first line.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::{OpenOptions, Receiver};

use super::group::{Ending, Group, OnLost};
use super::say;
use super::terminal;
use crate::cli::signals::{FORWARDED, STOPPING, Signals};
use crate::cli::{Failure, duration};
use crate::semaphore::Moment;

/// How the two lines begin.
pub(super) const VALID: &str = "valid";
pub(super) const ENDING: &str = "ending";

/// How long before the lock may be another's the last process is killed. (Whoever
/// says how long that is has left room for the rest.)
pub(super) const MARGIN: Duration = Duration::from_millis(100);

/// The guardian acts so much later than `exec`, which can say why.
const LATER: Duration = Duration::from_millis(50);

/// The longest time between two looks at the clock: timers stand still while
/// the machine is suspended.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(250);

/// Arguments of `lockkeeper guardian`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The number of the pipe to `exec`
    #[arg(long)]
    control: i32,

    /// The time between TERM and KILL
    #[arg(long, value_parser = duration)]
    kill_after: Duration,

    /// What to do when the lock is lost
    #[arg(long)]
    on_lost: OnLost,

    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&error))?;
    Err(Failure::silent(runtime.block_on(guard(arguments))?))
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Failure::UNAVAILABLE, format!("the command can't be guarded: {error}"))
}

async fn guard(arguments: &Arguments) -> Result<u8, Failure> {
    // Heard of and forgotten: they are for the command, which is of this group.
    let _forwarded = Signals::listen(&FORWARDED).map_err(|error| failed(&error))?;
    let mut stopping = Signals::listen(&STOPPING).map_err(|error| failed(&error))?;
    terminal::like_others();
    let mut control = Control::open(arguments.control).map_err(|error| failed(&error))?;
    let mut valid_until = match control.next().await {
        Line::Valid(moment) => moment,
        // Nothing was started yet.
        Line::Ending | Line::Gone => return Ok(Failure::UNAVAILABLE),
    };
    let mut command = start(&arguments.command)?;
    let group = Group::own();
    let kill_after = arguments.kill_after;
    // `exec` ends the command already; what is left for us is KILL.
    let mut exec_ends = false;
    // Nothing is to be done on a loss any more.
    let mut done = false;
    loop {
        let grace = if exec_ends { Duration::ZERO } else { kill_after };
        let act_at = valid_until - MARGIN - grace + LATER;
        let mut why = None;
        tokio::select! {
            status = command.wait() => {
                return status.map(code).map_err(|error| failed(&error));
            }
            line = control.next() => match line {
                Line::Valid(moment) => valid_until = moment,
                Line::Ending => match arguments.on_lost {
                    OnLost::Terminate | OnLost::Kill => exec_ends = true,
                    OnLost::Signal(_) | OnLost::Warn => done = true,
                },
                Line::Gone => why = Some("lockkeeper exec has ended"),
            },
            () = until(act_at), if !done => {
                if act_at.left().is_zero() {
                    why = Some("lockkeeper exec does not answer");
                }
            }
            // A command stopped by Ctrl-Z would keep the lock, and the shell would not
            // be told. One that is not to use the terminal stays stopped until it may.
            signal = stopping.next() => if signal == Signal::SIGTSTP {
                group.signal(Signal::SIGCONT);
            },
        }
        let Some(why) = why.filter(|_| !done) else { continue };
        // If it still answers, the command has been asked to end.
        let how = if exec_ends && !control.is_gone { OnLost::Kill } else { arguments.on_lost };
        let ending = Ending::begin(group, how, kill_after, valid_until - MARGIN + LATER);
        say(format!("{why}: the lock is lost, and so the command {}", how.in_words())).await;
        match ending {
            Some(ending) => ending.kill().await,
            None => done = true,
        }
    }
}

/// Sleeps until then, but never for long.
pub(super) async fn until(moment: Moment) {
    tokio::time::sleep(moment.left().min(LOOK_AT_CLOCK)).await;
}

/// What `exec` says.
enum Line {
    Valid(Moment),
    Ending,
    Gone,
}

/// The pipe from `exec`.
struct Control {
    lines: Lines<BufReader<Receiver>>,
    is_gone: bool,
}

impl Control {
    /// Opens the pipe of this inherited number and closes the number, which the
    /// command would inherit as well.
    fn open(number: i32) -> io::Result<Self> {
        let pipe = OpenOptions::new().open_receiver(format!("/dev/fd/{number}"))?;
        nix::unistd::close(number)?;
        Ok(Self { lines: BufReader::new(pipe).lines(), is_gone: false })
    }

    /// The next line; after [`Line::Gone`] there is none. Cancel safe.
    async fn next(&mut self) -> Line {
        while !self.is_gone {
            let Ok(Some(line)) = self.lines.next_line().await else {
                self.is_gone = true;
                return Line::Gone;
            };
            if line == ENDING {
                return Line::Ending;
            }
            let nanos = line.strip_prefix(VALID).and_then(|nanos| nanos.trim().parse().ok());
            if let Some(nanos) = nanos {
                return Line::Valid(Moment::from_nanos(nanos));
            }
        }
        std::future::pending().await
    }
}

/// Starts the command as `exec` was told it: no shell, our own input, output
/// and environment.
fn start(command: &[OsString]) -> Result<tokio::process::Child, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::new(Failure::USAGE, "there is no command"));
    };
    tokio::process::Command::new(program).args(arguments).spawn().map_err(|error| {
        let program = program.to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(Failure::NOT_FOUND, format!("{program}: command not found"))
            }
            _ => Failure::new(Failure::NOT_EXECUTABLE, format!("{program}: {error}")),
        }
    })
}

/// A process's exit code as a shell tells it.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => Failure::signalled(signal),
        (None, None) => u8::MAX,
    }
}
