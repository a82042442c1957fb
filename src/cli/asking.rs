//! Answers the question whether a lock is still held: `exec` for its command, and `hold
//! --background` for the later steps of a pipeline. Each listens on an abstract Unix socket,
//! and asks the broker for each question. The socket's name is random and known to the
//! command or in a private file only, so that no other user can listen in its place. The
//! kernel shows the name to every user, so only processes of the command, of the same user
//! and of root are answered. See `verify` in `cli` for the question.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use lockkeeper_semaphore::{Permit, Verdict};
use nix::unistd::{Uid, geteuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::processes::is_of_this_process;

/// Maximum time for the answer. Longer than a verification takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Maximum time to write an answer, which the asking process may not read.
const WRITING: Duration = Duration::from_secs(1);

/// Pause after a failure to accept a question.
const PAUSE: Duration = Duration::from_secs(1);

/// The environment variable with the name of the socket.
pub(super) const SOCKET: &str = "LOCK_SOCKET";

/// The first word of each answer. A reason may follow.
const HELD: &str = "held";
const DRAINING: &str = "draining";
const LOST: &str = "lost";

/// The answer about a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
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

/// A socket on which requests arrive.
pub(super) struct Socket {
    name: String,
    listener: UnixListener,
}

impl Socket {
    /// Listens on a socket with a random name.
    pub fn listen() -> io::Result<Self> {
        Self::bind(format!("lockkeeper-{:032x}", rand::random::<u128>()))
    }

    /// Listens on a socket with this name.
    pub fn bind(name: String) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { name, listener: UnixListener::from_std(listener)? })
    }

    /// Returns the socket's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the next connection of a process that may ask. Cancel safe.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((asking, _)) if may_ask(&asking) => return asking,
                Ok(_) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Answers questions about this lock as long as it is polled. Cancel safe.
    pub async fn answer(&self, permit: &Permit) -> Infallible {
        loop {
            let mut asking = self.accept().await;
            let answer = match permit.verify().await {
                Ok(Verdict::Held) => HELD.to_owned(),
                Ok(Verdict::Draining) => DRAINING.to_owned(),
                Ok(Verdict::Lost) => format!("{LOST} {}", permit.lost().await),
                Err(error) => format!("unknown {error}"),
            };
            let _ = timeout(WRITING, asking.write_all(answer.as_bytes())).await;
        }
    }
}

/// The socket on which the questions of a command of `exec` arrive.
pub(super) struct Questions(Option<Socket>);

impl Questions {
    /// Listens. The lock works without that too.
    pub fn listen() -> Self {
        let listening = Socket::listen();
        if let Err(error) = &listening {
            tracing::debug!(%error, "lockkeeper verify will not work in this command");
        }
        Self(listening.ok())
    }

    /// Returns the name of the socket, for the command's environment.
    pub fn socket(&self) -> Option<&str> {
        self.0.as_ref().map(Socket::name)
    }

    /// Answers questions as long as it is polled. Cancel safe.
    pub async fn answer(&self, permit: &Permit) -> Infallible {
        match &self.0 {
            Some(socket) => socket.answer(permit).await,
            None => std::future::pending().await,
        }
    }
}

/// Whether the peer is answered. Others could keep the answers from the command.
fn may_ask(asking: &UnixStream) -> bool {
    let Ok(peer) = asking.peer_cred() else { return false };
    let own = geteuid();
    peer.uid() == own.as_raw() || peer.uid() == 0 || peer.pid().is_some_and(is_of_this_process)
}

/// Asks the process that listens on this socket about its lock.
pub(super) async fn ask(socket: &str) -> io::Result<Answer> {
    answer(connect(socket)?).await
}

/// Returns the answer of the process at the other end.
pub(super) async fn answer(stream: UnixStream) -> io::Result<Answer> {
    Ok(Answer::parse(&text(stream, PATIENCE).await?))
}

/// Returns all that the process at the other end writes, until it closes the connection.
pub(super) async fn text(mut stream: UnixStream, patience: Duration) -> io::Result<String> {
    let mut text = String::new();
    timeout(patience, stream.read_to_string(&mut text)).await??;
    Ok(text)
}

/// Connects to the process that listens on this socket, if it is one of this user. Fails
/// with [`io::ErrorKind::ConnectionRefused`] if there is none: after the end of a process,
/// another user can listen under its name.
pub(super) fn connect_to_own(socket: &str) -> io::Result<UnixStream> {
    let stream = connect(socket)?;
    if Uid::from_raw(stream.peer_cred()?.uid()) == geteuid() {
        Ok(stream)
    } else {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
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

fn connect(name: &str) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect_addr(&address(name)?)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
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
