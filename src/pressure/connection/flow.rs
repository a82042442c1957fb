//! One open connection: sends commands, and records when bytes last flowed. A command
//! fails after the server has been silent for too long, however long its whole answer
//! takes. See `opening.rs` for how it is opened.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisFuture,
    RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The slowest supported network, 128 kbit/s. Written data may stay in buffers while the
/// network carries it, without a visible flow.
const SLOWEST_BYTES_PER_SECOND: u64 = 16 * 1024;

/// Maximum size of buffers on the way. Writing beyond it is visible as a flow.
const MOST_BUFFERED: u64 = 16 * 1024 * 1024;

/// A connection for commands. The clones share it. It closes with the last one.
#[derive(Clone)]
pub(in crate::pressure) struct Connection {
    commands: MultiplexedConnection,
    flow: Arc<Flow>,
    /// Maximum silence of the server while an answer is awaited.
    limit: Option<Duration>,
    _driver: Arc<Driver>,
}

impl Connection {
    /// Creates a connection over this stream, which must be unused.
    pub(super) async fn over<S>(stream: S, limit: Duration) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let flow = Arc::new(Flow::new());
        let stream = Watched { stream, flow: Arc::clone(&flow) };
        // Login and database are sent separately, to see the server's own refusals.
        // CLIENT SETINFO is unknown to Redis before 7.2.
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (commands, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = Arc::new(Driver(tokio::spawn(driver)));
        Ok(Self { commands, flow, limit: Some(limit), _driver: driver })
    }

    /// Returns the same connection without a limit: an answer is awaited until the
    /// connection ends.
    pub(in crate::pressure) fn patient(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Returns the number of bytes written since the connection was opened.
    pub(super) fn written(&self) -> u64 {
        self.flow.written.load(Ordering::Relaxed)
    }

    /// Returns when bytes last flowed, in either direction.
    pub(super) fn last_flow(&self) -> Instant {
        self.flow.last()
    }
}

/// Awaits an answer until the server has been silent for longer than this limit.
async fn answered<T>(
    flow: &Flow,
    limit: Option<Duration>,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let Some(limit) = limit else { return answer.await };
    let (began, written) = (Instant::now(), flow.written.load(Ordering::Relaxed));
    tokio::pin!(answer);
    loop {
        let due = flow.last().max(began) + limit + flow.on_the_way(written);
        if due <= Instant::now() {
            return Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
        }
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = sleep_until(due) => {}
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let Self { commands, flow, limit, .. } = self;
        Box::pin(answered(flow, *limit, commands.send_packed_command(command)))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let Self { commands, flow, limit, .. } = self;
        Box::pin(answered(flow, *limit, commands.send_packed_commands(pipeline, offset, count)))
    }

    fn get_db(&self) -> i64 {
        self.commands.get_db()
    }
}

/// The task that reads and writes. Without the abort on drop, it would outlive a
/// connection whose last command is never answered.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The traffic of a connection.
struct Flow {
    opened: Instant,
    /// Microseconds from the opening to the last flow.
    last: AtomicU64,
    written: AtomicU64,
    /// Bytes written since the last read.
    unanswered: AtomicU64,
}

impl Flow {
    fn new() -> Self {
        Self {
            opened: Instant::now(),
            last: AtomicU64::new(0),
            written: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        }
    }

    fn note(&self) {
        let micros = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.opened + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    /// Returns how long a command needs to arrive, if this number of bytes was written
    /// before it.
    fn on_the_way(&self, before: u64) -> Duration {
        let own = self.written.load(Ordering::Relaxed) - before;
        let bytes = own.max(self.unanswered.load(Ordering::Relaxed)).min(MOST_BUFFERED);
        Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_SECOND)
    }
}

/// A stream that records its traffic.
struct Watched<S> {
    stream: S,
    flow: Arc<Flow>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.flow.note();
            self.flow.unanswered.store(0, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            self.flow.note();
            self.flow.written.fetch_add(*count as u64, Ordering::Relaxed);
            self.flow.unanswered.fetch_add(*count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
