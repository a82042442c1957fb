//! Putting: one element or many, with or without waiting for room.

use std::sync::atomic::{AtomicBool, Ordering};

use super::waiting::Attempt;
use super::{Awaited, PutBatchError, Queue, QueueError, QueueRole, Wait, Work};
use crate::pressure::reply::Verdict;
use crate::pressure::{StoreError, scripts};

/// The largest element, in bytes, that Redis takes unless its administrator allows
/// more: 512 MiB.
pub const MAX_ELEMENT_BYTES: usize = 512 * 1024 * 1024;

/// Elements and bytes of one script at most, so that none stops the server for
/// long: a script of this size takes well under a millisecond.
const CHUNK_ELEMENTS: usize = 1000;
const CHUNK_BYTES: usize = 1024 * 1024;

/// From so many bytes on an element is put by a transaction, because a script copies
/// it (measured: half the speed at 100 kB).
const LARGE_BYTES: usize = 8 * 1024;

/// What the last put learnt.
#[derive(Default)]
pub(super) struct Putting {
    /// It filled the queue: the next one waits first.
    is_full: AtomicBool,
}

impl Queue {
    /// Puts an element; waits for room, and for another producer.
    ///
    /// Errors: [`QueueError::DoesNotExist`], [`QueueError::Closed`], also when
    /// that happens while it waits; [`QueueError::TooLarge`].
    ///
    /// Cancel safety: the element was put or it was not.
    pub async fn put(&self, element: impl AsRef<[u8]>) -> Result<(), QueueError> {
        self.put_one(element.as_ref(), Wait::Forever).await
    }

    /// Puts an element if that can be done at once. Errors: as [`Self::put`],
    /// [`QueueError::Full`] and [`QueueError::InUse`].
    pub async fn try_put(&self, element: impl AsRef<[u8]>) -> Result<(), QueueError> {
        self.put_one(element.as_ref(), Wait::No).await
    }

    /// Puts an element; waits at most so long. Errors: as [`Self::put`], and
    /// [`QueueError::TimedOut`]: it was not put, for certain.
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

    /// Puts elements in this order, as many at once as there is room for; other
    /// producers may put theirs between them. With [`Wait::For`], that is how
    /// long no element could be put at all.
    ///
    /// Errors: as [`Self::put`] and [`Self::try_put`], with how many were put.
    pub async fn put_batch(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
    ) -> Result<(), PutBatchError> {
        self.put_all(elements, wait, "room").await
    }

    /// Puts elements whether there is room or not: the protocol's escape "for
    /// extraordinary situations, such as a failing client that is pushing all of
    /// its data to the queue before terminating". Waits for the producer role
    /// alone. Nobody else can put until the queue is drained below its bound.
    ///
    /// Errors: as [`Self::put_batch`], without [`QueueError::Full`].
    pub async fn put_overfill(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
    ) -> Result<(), PutBatchError> {
        self.put_all(elements, wait, "overfill").await
    }

    async fn put_all(
        &self,
        elements: &[impl AsRef<[u8]>],
        wait: Wait,
        mode: &str,
    ) -> Result<(), PutBatchError> {
        let failed = |put, error| PutBatchError { put, error };
        if let Some(bytes) =
            elements.iter().map(|e| e.as_ref().len()).find(|bytes| *bytes > MAX_ELEMENT_BYTES)
        {
            return Err(failed(0, QueueError::TooLarge { bytes }));
        }
        let mut put = 0;
        while put < elements.len() {
            let rest = &elements[put..];
            let chunk = &rest[..chunk_length(rest)];
            let is_full = self.0.putting.is_full.load(Ordering::Relaxed) && mode == "room";
            let first = is_full.then_some(Awaited::Room);
            let some = self.put_some(chunk, wait, first, mode).await;
            put += some.map_err(|error| failed(put, error))?;
        }
        Ok(())
    }

    /// Puts some of these elements, at least one.
    async fn put_some(
        &self,
        chunk: &[impl AsRef<[u8]>],
        wait: Wait,
        first: Option<Awaited>,
        mode: &str,
    ) -> Result<usize, QueueError> {
        let mut pace = self.0.waiting.pace(wait, first);
        loop {
            pace.before().await?;
            match self.try_chunk(chunk, mode).await? {
                Attempt::Done(count) => return Ok(count),
                Attempt::NotYet { awaited, is_closed } => pace.until(awaited, is_closed).await?,
            }
        }
    }

    /// Puts as many of these elements as there is room for.
    async fn try_chunk(
        &self,
        chunk: &[impl AsRef<[u8]>],
        mode: &str,
    ) -> Result<Attempt<usize>, QueueError> {
        self.check(Work::Put).await?;
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
                let count = verdict.number(0).and_then(|count| usize::try_from(count).ok());
                Ok(Attempt::Done(count.unwrap_or(chunk.len())))
            }
            "full" => {
                is_full(true);
                Ok(Attempt::NotYet { awaited: Awaited::Room, is_closed: false })
            }
            "busy" => Ok(Attempt::NotYet {
                awaited: Awaited::Role { role: QueueRole::Producer, who: verdict.text(0) },
                is_closed: false,
            }),
            "closed" => Err(QueueError::Closed),
            "absent" => Err(QueueError::DoesNotExist),
            _ => Err(self.unexpected(verdict)),
        }
    }

    async fn put_small(
        &self,
        elements: &[impl AsRef<[u8]>],
        mode: &str,
    ) -> Result<Verdict, StoreError> {
        let mut call = self.call(&scripts::PUT);
        call.arg(&self.0.options.client_id).arg(mode).arg("none");
        for element in elements {
            call.arg(element.as_ref());
        }
        self.0.store.ask(&self.0.name, &call).await
    }

    /// Pushes the element and has the script take it back if it may not be there,
    /// in one transaction: so it is not copied into the script.
    async fn put_large(&self, element: &[u8], mode: &str) -> Result<Verdict, StoreError> {
        let mut transaction = redis::pipe();
        transaction.atomic().lpush(&self.0.keys[0], element).ignore();
        transaction
            .cmd("EVAL")
            .arg(scripts::PUT_TEXT.as_str())
            .arg(self.0.keys.len())
            .arg(&self.0.keys);
        transaction.arg(&self.0.options.client_id).arg(mode).arg(element.len());
        self.0.store.transact(&self.0.name, &transaction).await
    }
}

/// How many of these elements, at least one, go into one script. A large one goes
/// alone.
fn chunk_length(elements: &[impl AsRef<[u8]>]) -> usize {
    let mut bytes = 0;
    let fit = elements.iter().take(CHUNK_ELEMENTS).take_while(|element| {
        let length = element.as_ref().len();
        bytes += length;
        bytes <= CHUNK_BYTES && length < LARGE_BYTES
    });
    fit.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_at_least_one_element_and_is_bounded_in_number_and_bytes() {
        assert_eq!(chunk_length(&[vec![0; 5 * CHUNK_BYTES], vec![0]]), 1);
        assert_eq!(chunk_length(&vec![[0u8; 1]; 5000]), CHUNK_ELEMENTS);
        assert_eq!(chunk_length(&vec![vec![0; LARGE_BYTES - 1]; 200]), 128);
        assert_eq!(chunk_length(&[vec![0], vec![0; LARGE_BYTES], vec![0]]), 1);
    }
}
