//! Servers that follow a protocol up to some step and then send what no server sends: a
//! broker, a Redis server and a management API. Each listens on a port of its own and ends
//! with the test. See `amqp` and `redis` for the details.

pub mod amqp;
pub mod redis;

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};

/// A connection of a client, as the server sees it.
pub type Peer = BufStream<TcpStream>;

/// Starts a server that handles each connection in this way. Returns its port.
pub async fn serve<F>(handle: impl Fn(Peer) -> F + Send + 'static) -> u16
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(BufStream::new(stream)));
        }
    });
    port
}

/// Sends the bytes until the client closes the connection.
pub async fn flood(peer: &mut Peer, bytes: &[u8]) -> std::io::Result<()> {
    loop {
        peer.write_all(bytes).await?;
        peer.flush().await?;
    }
}

/// Sends the bytes, and nothing more.
pub async fn send(peer: &mut Peer, bytes: &[u8]) -> std::io::Result<()> {
    peer.write_all(bytes).await?;
    peer.flush().await
}

/// Sends the bytes, and keeps the connection open: a close with unread bytes would reset it,
/// and the client might read nothing.
pub async fn hold(peer: &mut Peer, bytes: &[u8]) -> std::io::Result<()> {
    send(peer, bytes).await?;
    silence(peer).await
}

/// Keeps the connection open without sending.
async fn silence(_peer: &mut Peer) -> std::io::Result<()> {
    tokio::time::sleep(Duration::from_mins(10)).await;
    Ok(())
}

/// Reads the head of a request.
async fn receive(peer: &mut Peer) -> std::io::Result<()> {
    let mut line = String::new();
    while peer.read_line(&mut line).await? > 2 {
        line.clear();
    }
    Ok(())
}

/// What a management API does at every request.
#[derive(Clone, Copy, Debug)]
pub enum Management {
    /// It sends nothing.
    Silence,
    /// Header lines without end.
    EndlessHeader,
    /// A list without end.
    EndlessBody,
    /// A body in parts of one byte.
    EndlessParts,
    /// `100 Continue`, again and again.
    EndlessContinue,
    /// `103 Early Hints`, again and again.
    EndlessHints,
    /// A list that is nested deeply.
    NestedJson,
    /// Bytes that are no HTTP.
    Garbage,
    /// It closes the connection.
    Closes,
}

impl Management {
    /// Every behaviour.
    pub const ALL: [Self; 9] = [
        Self::Silence,
        Self::EndlessHeader,
        Self::EndlessBody,
        Self::EndlessParts,
        Self::EndlessContinue,
        Self::EndlessHints,
        Self::NestedJson,
        Self::Garbage,
        Self::Closes,
    ];

    /// Starts the server. Returns its port.
    pub async fn start(self) -> u16 {
        serve(move |mut peer| async move {
            let body = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
            match self {
                Self::Silence => silence(&mut peer).await,
                Self::EndlessHeader => {
                    send(&mut peer, b"HTTP/1.1 200 OK\r\n").await?;
                    flood(&mut peer, &b"x-more: and more\r\n".repeat(500)).await
                }
                Self::EndlessBody => {
                    send(&mut peer, body).await?;
                    flood(&mut peer, &b"[{\"name\": \"x\"},".repeat(500)).await
                }
                Self::EndlessParts => {
                    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                    send(&mut peer, head).await?;
                    flood(&mut peer, &b"1\r\n \r\n".repeat(500)).await
                }
                Self::EndlessContinue => {
                    receive(&mut peer).await?;
                    flood(&mut peer, &b"HTTP/1.1 100 Continue\r\n\r\n".repeat(500)).await
                }
                Self::EndlessHints => {
                    receive(&mut peer).await?;
                    let hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
                    flood(&mut peer, &hints.repeat(500)).await
                }
                Self::NestedJson => {
                    send(&mut peer, body).await?;
                    hold(&mut peer, &b"[".repeat(100_000)).await
                }
                Self::Garbage => hold(&mut peer, &[0xff; 1000]).await,
                Self::Closes => Ok(()),
            }
        })
        .await
    }
}
