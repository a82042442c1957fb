//! A Redis server that answers what no Redis answers, before or after the login.

use std::io;

use tokio::io::AsyncBufReadExt;

use super::{Peer, flood, hold, send, serve, silence};

/// An answer.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Nothing.
    Silence,
    /// A line without end.
    EndlessLine,
    /// An error without end.
    EndlessError,
    /// A text without end.
    EndlessBulk,
    /// A list without end.
    EndlessArray,
    /// A list that is nested deeply.
    Nested,
    /// Messages that no client asked for, without end.
    Pushes,
    /// Bytes that are no Redis protocol.
    Garbage,
}

/// When it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// To the first command, which is the login.
    BeforeLogin,
    /// To the first command after the login.
    AfterLogin,
}

impl Answer {
    /// Every answer.
    pub const ALL: [Self; 8] = [
        Self::Silence,
        Self::EndlessLine,
        Self::EndlessError,
        Self::EndlessBulk,
        Self::EndlessArray,
        Self::Nested,
        Self::Pushes,
        Self::Garbage,
    ];

    /// Starts the server. Returns its port.
    pub async fn start(self, when: When) -> u16 {
        serve(move |mut peer| async move {
            loop {
                let command = read_command(&mut peer).await?;
                // AUTH and CLIENT SETNAME.
                let is_login = ["AUTH", "CLIENT", "SELECT"].contains(&command.as_str());
                if when == When::AfterLogin && is_login {
                    send(&mut peer, b"+OK\r\n").await?;
                    continue;
                }
                return self.send(&mut peer).await;
            }
        })
        .await
    }

    async fn send(self, peer: &mut Peer) -> io::Result<()> {
        let kilobyte = [b'x'; 1024];
        match self {
            Self::Silence => silence(peer).await,
            Self::EndlessLine => {
                send(peer, b"+").await?;
                flood(peer, &kilobyte).await
            }
            Self::EndlessError => {
                send(peer, b"-ERR ").await?;
                flood(peer, &kilobyte).await
            }
            Self::EndlessBulk => {
                send(peer, b"$99999999999\r\n").await?;
                flood(peer, &kilobyte).await
            }
            Self::EndlessArray => {
                send(peer, b"*999999999\r\n").await?;
                flood(peer, &b":1\r\n".repeat(256)).await
            }
            Self::Nested => flood(peer, &b"*1\r\n".repeat(256)).await,
            Self::Pushes => flood(peer, b">2\r\n+invalidate\r\n$1\r\nx\r\n").await,
            Self::Garbage => hold(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
        }
    }
}

/// Reads a command. Returns its name.
async fn read_command(peer: &mut Peer) -> io::Result<String> {
    let count: usize = read_number(peer).await?;
    let mut name = None;
    for _ in 0..count {
        let len = read_number(peer).await?;
        let mut word = vec![0; len + 2];
        tokio::io::AsyncReadExt::read_exact(peer, &mut word).await?;
        word.truncate(len);
        name.get_or_insert_with(|| String::from_utf8_lossy(&word).to_uppercase());
    }
    Ok(name.unwrap_or_default())
}

/// Reads the number of a line such as `*3` or `$5`.
async fn read_number(peer: &mut Peer) -> io::Result<usize> {
    let mut line = String::new();
    peer.read_line(&mut line).await?;
    line.trim().get(1..).and_then(|number| number.parse().ok()).ok_or(io::ErrorKind::Other.into())
}
