//! Elements that `get` has taken but not delivered. Determines which these are when `get`
//! has to end, and returns them to the queue or saves them to a file.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_pressure::{Delivery, Queue, QueueError, Taken, Wait};

use super::common::{Tally, count};
use super::spill_file;
use crate::cli::target::QueueTarget;

/// Time to wait for another consumer of the queue.
const PATIENCE: Duration = Duration::from_secs(2);

/// Elements of one get.
pub(super) struct Batch {
    pub taken: Arc<Taken>,
    /// Their deliveries, if they are in flight. Otherwise none.
    pub deliveries: Vec<Delivery>,
}

impl Batch {
    pub fn in_flight(mut deliveries: Vec<Delivery>) -> Self {
        let elements = deliveries.iter_mut().map(Delivery::take_element).collect();
        Self { taken: Arc::new(Taken::new(elements, None)), deliveries }
    }
}

impl From<Taken> for Batch {
    fn from(taken: Taken) -> Self {
        Self { taken: Arc::new(taken), deliveries: Vec::new() }
    }
}

/// Elements that were taken and may not have been read yet.
pub(super) struct Unwritten {
    separator: usize,
    /// The elements, oldest first, each with the number of bytes written before it.
    taken: VecDeque<(u64, Batch)>,
    /// Total number of bytes after all of these are written.
    end: u64,
    done: Tally,
    lost_at_most: usize,
}

/// Outcome for the elements.
pub(super) struct Outcome {
    written: Tally,
    given_back: u64,
    half_written: bool,
    lost_at_most: usize,
    /// Outcome for elements that could not be returned.
    rescued: Option<String>,
    /// Why elements that were read could not be acknowledged.
    unacknowledged: Option<QueueError>,
}

impl Unwritten {
    /// Creates the state for elements that end in `separator` bytes.
    pub fn new(separator: usize) -> Self {
        Self { separator, taken: VecDeque::new(), end: 0, done: Tally::default(), lost_at_most: 0 }
    }

    /// Adds elements that are written next.
    pub fn add(&mut self, batch: Batch) {
        let start = self.end;
        self.end += self.size(&batch.taken);
        self.taken.push_back((start, batch));
    }

    /// Records that a response with at most `elements` elements was lost.
    pub fn may_have_lost(&mut self, elements: usize) {
        self.lost_at_most = elements;
    }

    /// Drops elements that must have been read after `written` bytes, of which the output
    /// holds at most `capacity`.
    pub fn forget_what_was_read(&mut self, written: u64, capacity: usize) {
        while let Some((start, Batch { taken, .. })) = self.taken.front() {
            if start + self.size(taken) + capacity as u64 > written {
                break;
            }
            self.done.add(taken.len(), taken.iter().map(<[u8]>::len).sum());
            self.taken.pop_front();
        }
    }

    /// Drops all elements, because all were read, and returns their deliveries.
    pub fn forget_all(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for (_, batch) in &mut self.taken {
            deliveries.append(&mut batch.deliveries);
        }
        self.forget_what_was_read(self.end, 0);
        deliveries
    }

    fn size(&self, taken: &Taken) -> u64 {
        taken.iter().map(|element| (element.len() + self.separator) as u64).sum()
    }

    /// Returns elements to the queue that are not in the first `written` bytes, or are in
    /// the last `unread` of these. If `written` is unknown, no byte of the last elements
    /// counts as written.
    pub async fn give_back(
        mut self,
        (queue, which): (&Queue, &QueueTarget),
        written: Option<u64>,
        unread: u64,
    ) -> Outcome {
        let start = self.taken.back().map_or(0, |(start, _)| *start);
        let read = written.unwrap_or(start).saturating_sub(unread);
        let mut half_written = false;
        let (mut left, mut done, mut in_flight) = (Vec::new(), Vec::new(), Vec::new());
        for (mut at, Batch { taken, mut deliveries }) in std::mem::take(&mut self.taken) {
            let before = taken.len();
            let mut taken = Arc::unwrap_or_clone(taken);
            while let Some(element) = taken.first() {
                let end = at + (element.len() + self.separator) as u64;
                if end > read {
                    half_written |= at < read;
                    break;
                }
                self.done.add(1, element.len());
                taken.pop();
                at = end;
            }
            if deliveries.is_empty() {
                left.push(taken);
            } else {
                in_flight.extend(deliveries.split_off(before - taken.len()));
                done.extend(deliveries);
            }
        }
        let mut outcome = Outcome {
            written: self.done,
            given_back: 0,
            half_written,
            lost_at_most: self.lost_at_most,
            rescued: None,
            unacknowledged: None,
        };
        outcome.settle(queue, done, in_flight).await;
        // Newest first, so that each is the last one taken.
        while let Some(taken) = left.pop() {
            let elements = taken.len() as u64;
            match queue.give_back(taken, Wait::For(PATIENCE)).await {
                Ok(()) => outcome.given_back += elements,
                Err(failed) => {
                    let older = left.into_iter().flat_map(Taken::into_elements);
                    let lost: Vec<Vec<u8>> = older.chain(failed.taken.into_elements()).collect();
                    outcome.rescued = Some(rescued(which, &lost, &failed.error));
                    break;
                }
            }
        }
        outcome
    }
}

fn rescued(which: &QueueTarget, lost: &[Vec<u8>], why: &dyn fmt::Display) -> String {
    let bytes: usize = lost.iter().map(Vec::len).sum();
    let what = Tally { elements: lost.len() as u64, bytes: bytes as u64 };
    match spill_file::save(which, lost) {
        Ok(saved) => format!("{what} could not be given back ({why}) and were {saved}"),
        Err(error) => {
            format!(
                "{what} could not be given back ({why}) and are lost, for no file takes them: {error}"
            )
        }
    }
}

impl Outcome {
    /// Returns whether there is nothing to report.
    pub fn is_good(&self) -> bool {
        self.rescued.is_none() && self.lost_at_most == 0 && self.unacknowledged.is_none()
    }

    /// Acknowledges the deliveries of elements that were read, and returns the others.
    async fn settle(&mut self, queue: &Queue, read: Vec<Delivery>, unread: Vec<Delivery>) {
        if let Err(error) = queue.ack_all(read).await {
            self.unacknowledged = Some(error);
        }
        let elements = unread.len();
        // Otherwise the end of their leases returns them.
        if let Ok(ended) = queue.give_back_all(unread).await {
            self.given_back += (elements - ended) as u64;
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} written", self.written)?;
        if self.given_back > 0 {
            write!(f, "; {} given back to the queue", count(self.given_back, "element"))?;
        }
        if self.half_written {
            f.write_str("; the next one was written in part, and counts as not written")?;
        }
        if self.lost_at_most > 0 {
            let most = count(self.lost_at_most as u64, "element");
            write!(f, "; the server's last answer never came, so at most {most} may be lost")?;
        }
        if let Some(error) = &self.unacknowledged {
            write!(f, "; some could not be acknowledged and may be delivered again ({error})")?;
        }
        match &self.rescued {
            Some(rescued) => write!(f, "; {rescued}"),
            None => Ok(()),
        }
    }
}
