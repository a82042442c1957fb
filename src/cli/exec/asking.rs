//! Answers the command's question whether its lock is still held: `exec` listens on an
//! abstract Unix socket, and asks the broker for each question. The socket's name is
//! random and passed to the command only, so that no other user can listen in its place.
//! The kernel shows the name to every user, so only processes of the command, of the same
//! user and of root are answered. See `verify` in `cli` for the question.

use std::convert::Infallible;
use std::io::{self, Read};
use std::time::Duration;

use lockkeeper_semaphore::{Permit, Verdict};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

use crate::cli::processes::is_of_this_process;

/// Maximum time for the answer. Longer than a verification takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// Maximum time to write an answer, which the asking process may not read.
const WRITING: Duration = Duration::from_secs(1);

/// Pause after a failure to accept a question.
const PAUSE: Duration = Duration::from_secs(1);

/// The environment variable with the name of the socket.
pub(in crate::cli) const SOCKET: &str = "LOCK_SOCKET";

/// The first word of each answer. A reason may follow.
const HELD: &str = "held";
const DRAINING: &str = "draining";
const LOST: &str = "lost";

/// What `exec` answered.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum Answer {
    Held,
    Draining,
    /// Contains the reason.
    Lost(String),
    /// The broker did not answer. Contains the error.
    Unknown(String),
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (word, rest) = text.trim_end().split_once(' ').unwrap_or((text.trim_end(), ""));
        match word {
            HELD => Self::Held,
            DRAINING => Self::Draining,
            LOST => Self::Lost(rest.to_owned()),
            _ => Self::Unknown(rest.to_owned()),
        }
    }
}

/// The socket on which the questions arrive.
pub(super) struct Questions(Option<(String, UnixListener)>);

impl Questions {
    /// Listens. The lock works without that too.
    pub fn listen() -> Self {
        let name = format!("lockkeeper-{:032x}", rand::random::<u128>());
        match bind(&name) {
            Ok(listener) => Self(Some((name, listener))),
            Err(error) => {
                tracing::debug!(%error, "lockkeeper verify will not work in this command");
                Self(None)
            }
        }
    }

    /// Returns the name of the socket, for the command's environment.
    pub fn socket(&self) -> Option<&str> {
        self.0.as_ref().map(|(name, _)| name.as_str())
    }

    /// Answers questions as long as it is polled. Cancel safe.
    pub async fn answer(&self, permit: &Permit) -> Infallible {
        let Some((_, listener)) = &self.0 else { return std::future::pending().await };
        loop {
            let Ok((mut asking, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            if !may_ask(&asking) {
                continue;
            }
            let answer = match permit.verify().await {
                Ok(Verdict::Held) => HELD.to_owned(),
                Ok(Verdict::Draining) => DRAINING.to_owned(),
                Ok(Verdict::Lost) => format!("{LOST} {}", permit.lost().await),
                Err(error) => format!("unknown {error}"),
            };
            let _ = tokio::time::timeout(WRITING, asking.write_all(answer.as_bytes())).await;
        }
    }
}

/// Whether the peer is answered. Others could keep the answers from the command.
fn may_ask(asking: &UnixStream) -> bool {
    let Ok(peer) = asking.peer_cred() else { return false };
    let own = nix::unistd::geteuid();
    peer.uid() == own.as_raw() || peer.uid() == 0 || peer.pid().is_some_and(is_of_this_process)
}

/// Asks the `exec` that listens on this socket.
pub(in crate::cli) fn ask(socket: &str) -> io::Result<Answer> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(Answer::parse(&text))
}

#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;

    std::os::unix::net::SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn address(_: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    // Other systems have no sockets without a file.
    Err(io::ErrorKind::Unsupported.into())
}

fn bind(name: &str) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn connect(name: &str) -> io::Result<std::os::unix::net::UnixStream> {
    std::os::unix::net::UnixStream::connect_addr(&address(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_words_are_proof_of_a_hold() {
        assert_eq!(Answer::parse("held"), Answer::Held);
        assert_eq!(Answer::parse("draining\n"), Answer::Draining);
        assert_eq!(Answer::parse("lost for a reason"), Answer::Lost("for a reason".to_owned()));
        assert_eq!(Answer::parse("unknown no answer"), Answer::Unknown("no answer".to_owned()));
        for text in ["", "hel", "heldx"] {
            assert_eq!(Answer::parse(text), Answer::Unknown(String::new()), "{text:?}");
        }
    }
}
