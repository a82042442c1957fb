//! Put: adds one element or many, with or without waiting for room.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::pace::Attempt;
use super::queue::{Queue, Work};
use super::{Awaited, PutBatchError, QueueError, QueueRole, Wait};
use crate::reply::Verdict;
use crate::{StoreError, scripts};

/// Maximum size of an element, in bytes, unless the Redis administrator allows more: 512
/// MiB.
pub const MAX_ELEMENT_BYTES: usize = 512 * 1024 * 1024;

/// Maximum number of elements per script, so that none blocks the server for long.
const CHUNK_ELEMENTS: usize = 1000;

/// Size in bytes from which an element is put by a transaction, because a script copies
/// it (measured: half the speed at 100 kB).
const LARGE_BYTES: usize = 8 * 1024;

/// Whether a put respects the bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PutMode {
    /// Puts as many elements as there is room for.
    Room,
    /// Puts all of them.
    Overfill,
}

impl PutMode {
    /// Returns the mode of `put.lua`.
    fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Overfill => "overfill",
        }
    }
}

impl Queue {
    /// Puts an element. Waits for room, and for another producer.
    ///
    /// Cancel safety: the element was either put or not.
    ///
    /// # Errors
    ///
    /// [`QueueError::DoesNotExist`]; [`QueueError::Closed`], also if the queue is
    /// closed during the wait; [`QueueError::TooLarge`].
    pub async fn put(&self, element: impl AsRef<[u8]>) -> Result<(), QueueError> {
        self.put_one(element.as_ref(), Wait::Forever).await
    }

    /// Puts an element if that is possible without waiting.
    ///
    /// # Errors
    ///
    /// As [`Self::put`], [`QueueError::Full`] and [`QueueError::InUse`].
    pub async fn try_put(&self, element: impl AsRef<[u8]>) -> Result<(), QueueError> {
        self.put_one(element.as_ref(), Wait::No).await
    }

    /// Puts an element, waiting at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Self::put`], and [`QueueError::TimedOut`], after which it was certainly
    /// not put.
    pub async fn put_timeout(
        &self,
        element: impl AsRef<[u8]>,
        timeout: std::time::Duration,
    ) -> Result<(), QueueError> {
        self.put_one(element.as_ref(), Wait::For(timeout)).await
    }

    async fn put_one(&self, element: &[u8], wait: Wait) -> Result<(), QueueError> {
        self.put_batch(&[element], wait).await.map_err(|failed| failed.error)
    }

    /// Puts elements in this order, as many at a time as there is room for. Other
    /// producers may put theirs in between. [`Wait::For`] limits the time during which no
    /// element can be put at all.
    ///
    /// # Errors
    ///
    /// As [`Self::put`] and [`Self::try_put`], with the number of elements that were
    /// put and of those that may have been.
    pub async fn put_batch(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
    ) -> Result<(), PutBatchError> {
        self.put_all(elements, wait, PutMode::Room).await
    }

    /// Puts elements regardless of the bound. This is the protocol's escape "for
    /// extraordinary situations, such as a failing client that is pushing all of its data
    /// to the queue before terminating". Waits only for the producer role. No other
    /// element can be put until the queue is drained below its bound.
    ///
    /// # Errors
    ///
    /// As [`Self::put_batch`], without [`QueueError::Full`].
    pub async fn put_overfill(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
    ) -> Result<(), PutBatchError> {
        self.put_all(elements, wait, PutMode::Overfill).await
    }

    /// Returns how many bytes of elements a put now sends in one batch, if no element is
    /// larger.
    #[must_use]
    pub fn put_bytes(&self) -> usize {
        self.0.putting.batch.bytes()
    }

    async fn put_all(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
        mode: PutMode,
    ) -> Result<(), PutBatchError> {
        let failed = |put, uncertain, error| PutBatchError { put, uncertain, error };
        if let Some(bytes) =
            elements.iter().map(|e| e.as_ref().len()).find(|bytes| *bytes > MAX_ELEMENT_BYTES)
        {
            return Err(failed(0, 0, QueueError::TooLarge { bytes }));
        }
        let mut put = 0;
        while put < elements.len() {
            let rest = &elements[put..];
            let chunk = &rest[..chunk_length(rest, self.put_bytes())];
            let is_full = self.0.putting.is_full.load(Ordering::Relaxed) && mode == PutMode::Room;
            let first = is_full.then_some(Awaited::Room);
            let some = self.put_some(chunk, wait, first, mode).await;
            put += some.map_err(|error| {
                let uncertain = if error.ends_unknown() { chunk.len() } else { 0 };
                failed(put, uncertain, error)
            })?;
        }
        Ok(())
    }

    /// Puts some of these elements, at least one.
    async fn put_some(
        &self,
        chunk: &[impl AsRef<[u8]>],
        wait: Wait,
        first: Option<Awaited>,
        mode: PutMode,
    ) -> Result<usize, QueueError> {
        let mut pace = self.0.waiting.pace(wait, first);
        loop {
            pace.before().await?;
            if let Some(count) = pace.after(self.try_chunk(chunk, mode).await).await? {
                return Ok(count);
            }
        }
    }

    /// Puts as many of these elements as there is room for.
    async fn try_chunk(
        &self,
        chunk: &[impl AsRef<[u8]>],
        mode: PutMode,
    ) -> Result<Attempt<usize>, QueueError> {
        self.check(Work::Put).await?;
        let began = Instant::now();
        let asked = match chunk {
            [large] if large.as_ref().len() >= LARGE_BYTES => {
                self.put_large(large.as_ref(), mode).await
            }
            _ => self.put_small(chunk, mode).await,
        };
        let verdict = match asked {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.explain(error, Work::Put).await),
        };
        let is_full = |is| self.0.putting.is_full.store(is, Ordering::Relaxed);
        match verdict.word.as_str() {
            "put" => {
                is_full(verdict.number(1) == Some(0));
                let bytes = chunk.iter().map(|element| element.as_ref().len()).sum();
                self.0.putting.batch.learn(bytes, began.elapsed());
                let count = verdict.number(0).and_then(|count| usize::try_from(count).ok());
                Ok(Attempt::Done(count.unwrap_or(chunk.len())))
            }
            "full" => {
                is_full(true);
                Ok(Attempt::NotYet { awaited: Awaited::Room, polls: false })
            }
            "busy" => Ok(Attempt::NotYet {
                awaited: Awaited::Role { role: QueueRole::Producer, who: verdict.text(0) },
                polls: false,
            }),
            "closed" => Err(QueueError::Closed),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    async fn put_small(
        &self,
        elements: &[impl AsRef<[u8]>],
        mode: PutMode,
    ) -> Result<Verdict, StoreError> {
        let mut call = self.call(&scripts::PUT);
        call.arg(&self.0.options.client_id).arg(mode.name()).arg("none");
        for element in elements {
            call.arg(element.as_ref());
        }
        self.0.store.ask(&self.0.name, &call).await
    }

    /// Pushes the element, and lets the script remove it if it is not allowed, in one
    /// transaction. The element is thus not copied into the script.
    async fn put_large(&self, element: &[u8], mode: PutMode) -> Result<Verdict, StoreError> {
        let mut transaction = redis::pipe();
        transaction.atomic().lpush(&self.0.keys[0], element).ignore();
        transaction
            .cmd("EVAL")
            .arg(scripts::PUT_TEXT.as_str())
            .arg(self.0.keys.len())
            .arg(&self.0.keys);
        transaction.arg(&self.0.options.client_id).arg(mode.name()).arg(element.len());
        self.0.store.transact(&self.0.name, &transaction).await
    }
}

/// Returns how many of these elements, at least one, go into one script of at most this
/// number of bytes. A large one is sent alone.
fn chunk_length(elements: &[impl AsRef<[u8]>], most_bytes: usize) -> usize {
    let mut bytes = 0;
    let fit = elements.iter().take(CHUNK_ELEMENTS).take_while(|element| {
        let length = element.as_ref().len();
        bytes += length;
        bytes <= most_bytes && length < LARGE_BYTES
    });
    fit.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::batch;

    #[test]
    fn a_chunk_has_at_least_one_element_and_is_bounded_in_number_and_bytes() {
        let most = batch::MOST;
        assert_eq!(chunk_length(&[vec![0; 5 * most], vec![0]], most), 1);
        assert_eq!(chunk_length(&vec![[0u8; 1]; 5000], most), CHUNK_ELEMENTS);
        assert_eq!(chunk_length(&vec![vec![0; LARGE_BYTES - 1]; 200], most), 128);
        assert_eq!(chunk_length(&vec![vec![0; LARGE_BYTES - 1]; 200], 20_000), 2);
        assert_eq!(chunk_length(&[vec![0], vec![0; LARGE_BYTES], vec![0]], most), 1);
    }
}
