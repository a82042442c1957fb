//! A queue as a stream of elements, and as a sink for them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::BoxFuture;
use futures::{FutureExt, Sink, Stream};

use super::{PutBatchError, Queue, QueueError, Wait};

/// Number of elements that a sink buffers before it puts them.
const GATHERED: usize = 256;
/// Number of bytes after which it stops buffering.
const GATHERED_BYTES: usize = 256 * 1024;

impl Queue {
    /// Returns the elements as a stream, each taken when the stream is polled. The stream
    /// ends when the queue is closed and empty. Any other error is the stream's last
    /// item.
    ///
    /// Cancel safe: see [`Queue`].
    pub fn stream(&self) -> impl Stream<Item = Result<Vec<u8>, QueueError>> + Send + use<> {
        futures::stream::unfold(Some(self.clone()), async |queue| {
            let queue = queue?;
            match queue.get().await {
                Ok(element) => Some((Ok(element), Some(queue))),
                Err(QueueError::Closed) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Returns a sink that puts elements in batches. An element is in the queue for
    /// certain after a successful flush. Closing the sink puts the remaining elements and
    /// closes the queue, so that its consumer's stream ends; `forward` does the same. To
    /// leave the queue open, flush and drop the sink.
    pub fn sink(&self) -> QueueSink {
        QueueSink {
            queue: self.clone(),
            gathered: Vec::new(),
            bytes: 0,
            work: None,
            is_closing: false,
        }
    }
}

type Work = BoxFuture<'static, (Vec<Vec<u8>>, Result<(), QueueError>)>;

/// See [`Queue::sink`]. Dropping it discards unflushed elements.
///
/// ```no_run
/// # async fn run(queue: lockkeeper_client::Queue) -> Result<(), Box<dyn std::error::Error>> {
/// use futures::{SinkExt, StreamExt, stream};
///
/// let frames = stream::iter((0..1000).map(|n| Ok(format!("frame {n}").into_bytes())));
/// // Puts all of them in batches, and closes the queue.
/// frames.forward(queue.sink()).await?;
///
/// let mut sink = queue.sink();
/// sink.feed(b"one more".to_vec()).await?;
/// sink.flush().await?; // it is in the queue, which stays open
/// # Ok(())
/// # }
/// ```
pub struct QueueSink {
    queue: Queue,
    gathered: Vec<Vec<u8>>,
    bytes: usize,
    /// A put or a close in progress. Its result contains the elements that were not put.
    work: Option<Work>,
    is_closing: bool,
}

impl QueueSink {
    /// Returns the elements that are not in the queue yet. While no put is in progress,
    /// these are all of them. After an error they can be sent elsewhere. (If
    /// [`QueueError::ends_unknown`], the first of them may be in the queue.)
    pub fn into_unsent(self) -> Vec<Vec<u8>> {
        self.gathered
    }

    fn put_gathered(&mut self) {
        if self.work.is_some() || self.gathered.is_empty() {
            return;
        }
        let (queue, mut elements) = (self.queue.clone(), std::mem::take(&mut self.gathered));
        self.bytes = 0;
        self.work = Some(
            async move {
                match queue.put_batch(&elements, Wait::Forever).await {
                    Ok(()) => (Vec::new(), Ok(())),
                    Err(PutBatchError { put, error, .. }) => (elements.split_off(put), Err(error)),
                }
            }
            .boxed(),
        );
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<Result<(), QueueError>> {
        let Some(work) = &mut self.work else { return Poll::Ready(Ok(())) };
        let (mut unsent, result) = ready!(work.poll_unpin(context));
        self.work = None;
        unsent.append(&mut self.gathered);
        self.gathered = unsent;
        Poll::Ready(result)
    }
}

impl Sink<Vec<u8>> for QueueSink {
    type Error = QueueError;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), QueueError>> {
        if self.gathered.len() >= GATHERED || self.bytes >= GATHERED_BYTES {
            self.put_gathered();
            return self.poll_work(context);
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, element: Vec<u8>) -> Result<(), QueueError> {
        self.bytes += element.len();
        self.gathered.push(element);
        Ok(())
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), QueueError>> {
        loop {
            ready!(self.poll_work(context))?;
            if self.gathered.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.put_gathered();
        }
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), QueueError>> {
        if !self.is_closing {
            ready!(self.as_mut().poll_flush(context))?;
            let queue = self.queue.clone();
            let close = async move { (Vec::new(), queue.close(Wait::Forever).await) };
            self.work = Some(close.boxed());
            self.is_closing = true;
        }
        self.poll_work(context)
    }
}
