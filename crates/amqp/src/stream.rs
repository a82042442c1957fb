//! The bytes of a connection: dials the broker, with TLS if configured, and checks its
//! frames before lapin reads them. See `incoming` for the checks, and `connection` for
//! the protocol above.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures::Stream;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use super::endpoint::Endpoint;
use super::incoming::{Closes, Frames};
use crate::error::AmqpError;

/// Number of bytes that are read together.
const CHUNK: usize = 8 * 1024;

/// The bytes between two peers, encrypted or not.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// How to dial a broker.
pub struct Dialer {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    /// Whether the last attempt has reached a listener.
    reached: Arc<AtomicBool>,
    closes: Closes,
}

impl Dialer {
    /// Records in `closes` what the broker closes. Fails if the endpoint's certificates can't be
    /// used.
    pub fn new(endpoint: &Endpoint, closes: Closes) -> Result<Self, AmqpError> {
        let (host, port) = (endpoint.host.clone(), endpoint.port);
        let tls = endpoint.tls()?.map(TlsConnector::from);
        Ok(Self { host, port, tls, reached: Arc::clone(&endpoint.found.reached), closes })
    }

    /// Connects. Gives `opened` a second handle on the socket before the TLS handshake.
    /// Cancel safe.
    pub async fn dial(
        &self,
        opened: impl FnOnce(std::net::TcpStream),
    ) -> io::Result<Checked<Box<dyn Bytes>>> {
        self.reached.store(false, Ordering::Release);
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        self.reached.store(true, Ordering::Release);
        socket.set_nodelay(true)?;
        opened(socket.as_fd().try_clone_to_owned()?.into());
        let bytes: Box<dyn Bytes> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
                Box::new(tls.connect(name, socket).await?)
            }
        };
        Ok(Checked::new(bytes, Frames::recording(self.closes.clone())))
    }
}

/// A stream whose reader sees only frames that were checked, and whose writer can't send frames
/// on a closed channel.
pub struct Checked<S> {
    stream: S,
    frames: Frames,
    /// Bytes of the writer that were not written yet.
    outgoing: Vec<u8>,
    /// Checked bytes that were not read yet, from `read` on.
    ready: Vec<u8>,
    read: usize,
}

impl<S> Checked<S> {
    fn new(stream: S, frames: Frames) -> Self {
        let (outgoing, ready) = (Vec::new(), Vec::new());
        Self { stream, frames, outgoing, ready, read: 0 }
    }
}

impl<S: AsyncWrite + Unpin> Checked<S> {
    fn poll_write_outgoing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write(context, &self.outgoing))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, frames, ready, read, .. } = &mut *self;
        while *read == ready.len() {
            ready.clear();
            *read = 0;
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            frames
                .receive(chunk.filled(), ready)
                .map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation))?;
        }
        let len = buffer.remaining().min(ready.len() - *read);
        buffer.put_slice(&ready[*read..*read + len]);
        *read += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_outgoing(context))?;
        let Self { frames, outgoing, .. } = &mut *self;
        frames.send(bytes, outgoing);
        // What can't be written yet is written by the next call.
        match self.poll_write_outgoing(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_outgoing(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that does not read can't delay the end.
        let _ = self.poll_write_outgoing(context);
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The runtime of lapin's connections: tokio, with checked streams.
#[derive(Clone, Debug)]
pub struct Kit(Tokio);

impl Kit {
    /// Returns a runtime that uses the current tokio runtime.
    pub fn current() -> Runtime<Self> {
        Runtime::new(Self(Tokio::current()))
    }
}

/// A stream as lapin takes it.
pub type LapinStream = Compat<Checked<Box<dyn Bytes>>>;

/// Returns the stream as lapin takes it.
pub fn for_lapin(stream: Checked<Box<dyn Bytes>>) -> LapinStream {
    stream.compat()
}

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = LapinStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Not used: a [`Dialer`] connects.
    #[expect(refining_impl_trait, reason = "there is no other stream")]
    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<Self::TcpStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    /// Not used, as above.
    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
