//! A TCP proxy that counts the bytes between a client and a server, for any protocol. See
//! `lockkeeper_prove::wire` for the proxy that understands AMQP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::Result;

/// The proxy, ended when dropped.
pub struct Counter {
    /// Its address.
    pub address: SocketAddr,
    counts: Arc<[AtomicU64; 2]>,
    accepting: JoinHandle<()>,
}

impl Counter {
    /// Starts a proxy for the server at this address.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counts: Arc<[AtomicU64; 2]> = Arc::default();
        let counted = Arc::clone(&counts);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(copy(from_client, to_server, Arc::clone(&counted)));
                tokio::spawn(copy(from_server, to_client, Arc::clone(&counted)));
            }
        });
        Ok(Self { address, counts, accepting })
    }

    /// Returns the number of times that bytes arrived so far, in both directions, and the number
    /// of bytes.
    pub fn counts(&self) -> [u64; 2] {
        [0, 1].map(|index| self.counts[index].load(Ordering::Relaxed))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    counts: Arc<[AtomicU64; 2]>,
) {
    let mut buffer = vec![0; 65536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        counts[0].fetch_add(1, Ordering::Relaxed);
        counts[1].fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
