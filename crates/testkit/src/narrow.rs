//! A network of limited bandwidth in front of a real server. It changes no data, but
//! delays it or holds back answers. Its sockets buffer as much as the machine permits,
//! like those of a tunnel.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// The network. When dropped, it goes down and closes all its connections.
pub struct Narrow {
    port: u16,
    answers: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Narrow {
    /// Starts a network in front of this port of 127.0.0.1. All connections share the
    /// bandwidth. Each direction has the full bandwidth.
    pub async fn before(server: u16, bits_per_second: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = watch::Sender::new(true);
        let bandwidth = |open| Arc::new(Bandwidth::new(bits_per_second / 8, open));
        let up = bandwidth(watch::Sender::new(true).subscribe());
        let down = bandwidth(answers.subscribe());
        let task = tokio::spawn(async move {
            let mut carriers = JoinSet::new();
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                carriers.spawn(Arc::clone(&up).carry(near_read, far_write));
                carriers.spawn(Arc::clone(&down).carry(far_read, near_write));
            }
        });
        Self { port, answers, task }
    }

    /// From now on, holds back the server's answers.
    pub fn hold_answers(&self) {
        self.answers.send_replace(false);
    }

    /// Returns its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One direction.
struct Bandwidth {
    bytes_per_second: u64,
    /// When all data sent before will have passed.
    free: Mutex<Instant>,
    open: watch::Receiver<bool>,
}

impl Bandwidth {
    fn new(bytes_per_second: u64, open: watch::Receiver<bool>) -> Self {
        Self { bytes_per_second, free: Mutex::new(Instant::now()), open }
    }

    async fn carry(
        self: Arc<Self>,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
    ) {
        // A hundredth of a second at a time.
        let mut buffer = vec![0; usize::try_from(self.bytes_per_second / 100).unwrap().max(1)];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            sleep_until(self.reserve(count as u64)).await;
            if !*self.open.borrow() {
                // Waits until the network goes down.
                std::future::pending::<()>().await;
            }
            if to.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    }

    /// Returns when this number of bytes will have passed.
    fn reserve(&self, bytes: u64) -> Instant {
        let mut free = self.free.lock().unwrap();
        let took = Duration::from_micros(bytes * 1_000_000 / self.bytes_per_second);
        *free = (*free).max(Instant::now()) + took;
        *free
    }
}
