//! One open connection: sends commands, and records when bytes last flowed. A command
//! fails after the server has been silent for too long, however long its whole answer
//! takes. See `opening` for how it is opened, and `answers` for how long an answer may be.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, RedisFuture,
    RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::answers::{Answers, BEFORE_LOGIN, Violation};

/// The slowest supported network, 128 kbit/s. Written data may stay in buffers while the
/// network carries it, without a visible flow.
const SLOWEST_BYTES_PER_SECOND: u64 = 16 * 1024;

/// Beginnings of the errors after which a server closes the connection. A transaction that is
/// refused in this way has not begun.
const LAST_WORDS: [&str; 3] = ["DENIED ", "ERR max number of clients", "ERR Protocol error"];

/// Maximum length of such a line.
const LONGEST_LINE: usize = 2048;

/// Maximum size of buffers on the way. Writing beyond it is visible as a flow.
const MOST_BUFFERED: u64 = 16 * 1024 * 1024;

/// A connection for commands. The clones share it. It closes with the last one.
#[derive(Clone)]
pub(crate) struct Connection {
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
        let (is_broken, answers) = (false, Answers::default());
        let stream = Watched { stream, flow: Arc::clone(&flow), answers, is_broken };
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
    pub(crate) fn patient(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Allows answers of this size, in bytes, once the login is complete.
    pub(super) fn allow(&self, most: usize) {
        self.flow.longest_answer.store(most, Ordering::Relaxed);
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

/// Awaits an answer until the server has been silent for longer than this limit. If the
/// connection ends before, the server may have said why.
async fn answered<T>(
    flow: &Flow,
    limit: Option<Duration>,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let answered = within(flow, limit, answer).await;
    answered.map_err(
        |error| if error.is_io_error() { flow.last_words().unwrap_or(error) } else { error },
    )
}

async fn within<T>(
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
    /// Whether a command was written, so that an answer has a command that it belongs to.
    has_written: AtomicBool,
    /// The reader that waits for that.
    reader: AtomicWaker,
    /// The last line that was read, if it is an error after which the server closes.
    last_words: Mutex<Option<String>>,
    /// Maximum size of an answer, in bytes.
    longest_answer: AtomicUsize,
    /// Why this process ended the connection, if it did.
    violation: OnceLock<Violation>,
}

impl Flow {
    fn new() -> Self {
        Self {
            opened: Instant::now(),
            last: AtomicU64::new(0),
            written: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            has_written: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            last_words: Mutex::new(None),
            longest_answer: AtomicUsize::new(BEFORE_LOGIN),
            violation: OnceLock::new(),
        }
    }

    /// Records the end of the bytes that were read.
    fn heard(&self, bytes: &[u8]) {
        let end = &bytes[bytes.len().saturating_sub(LONGEST_LINE)..];
        let line =
            end.strip_suffix(b"\r\n").and_then(|end| end.rsplit(|&byte| byte == b'\n').next());
        let text = line.and_then(|line| std::str::from_utf8(line.strip_prefix(b"-")?).ok());
        let is_last = |text: &&str| LAST_WORDS.iter().any(|begin| text.starts_with(begin));
        let words = text.filter(is_last).map(ToOwned::to_owned);
        *self.last_words.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// Returns why the connection was closed, if the server has said so, or this process has
    /// closed it.
    fn last_words(&self) -> Option<RedisError> {
        if let Some(violation) = self.violation.get() {
            return Some((ErrorKind::Parse, "unexpected answer", violation.to_string()).into());
        }
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let (code, detail) = words.split_once(' ')?;
        Some(redis::make_extension_error(code.to_owned(), Some(detail.to_owned())))
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

/// A stream that records its traffic, and lets no answer get lost that the server sends
/// before it closes the connection: "max number of clients reached" comes before the first
/// command, and "invalid bulk length" while a transaction is still being written. The redis
/// crate drops the former, no longer reads after a write has failed, and expects more answers
/// to a transaction.
struct Watched<S> {
    stream: S,
    flow: Arc<Flow>,
    answers: Answers,
    /// Whether a write has failed. The connection then ends after the remaining bytes are read.
    is_broken: bool,
}

impl<S> Watched<S> {
    /// Lets the reader read.
    fn may_read(&self) {
        if !self.flow.has_written.swap(true, Ordering::AcqRel) {
            self.flow.reader.wake();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.flow.has_written.load(Ordering::Acquire) {
            self.flow.reader.register(context.waker());
            if !self.flow.has_written.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        let before = buffer.filled().len();
        let Self { stream, flow, answers, .. } = &mut *self;
        let read = Pin::new(stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            flow.note();
            flow.unanswered.store(0, Ordering::Relaxed);
            let heard = &buffer.filled()[before..];
            flow.heard(heard);
            let longest = flow.longest_answer.load(Ordering::Relaxed);
            if let Err(violation) = answers.follow(heard, longest) {
                let _ = flow.violation.set(violation);
                buffer.set_filled(before);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
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
        self.may_read();
        if self.is_broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(_)) = &written {
            self.is_broken = true;
            return Poll::Ready(Ok(bytes.len()));
        }
        if let Poll::Ready(Ok(count)) = &written {
            self.flow.note();
            self.flow.written.fetch_add(*count as u64, Ordering::Relaxed);
            self.flow.unanswered.fetch_add(*count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_broken {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Err(_)) = &flushed {
            self.is_broken = true;
            return Poll::Ready(Ok(()));
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
