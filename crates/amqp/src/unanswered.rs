//! Queues that do not answer although the broker does. With Khepri, the broker takes up to
//! 64 s to answer a request about a queue whose node is down (measured on 4.0.5), and with
//! every store until it notices that the node hangs. See `channel/leaving` for the requests.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::BasicQosOptions;
use tokio::runtime::Handle;

use crate::error::AmqpError;

/// How long an answer is awaited in the background: longer than the broker takes.
const LATEST: Duration = Duration::from_secs(120);

/// The queues of one connection about which a request has not been answered yet. Another
/// request about such a queue would take as long, and occupy another channel.
#[derive(Clone, Default)]
pub struct Unanswered(Arc<Mutex<HashSet<String>>>);

impl Unanswered {
    /// Whether a request about this queue has not been answered yet.
    pub fn contains(&self, queue: &str) -> bool {
        self.lock().contains(queue)
    }

    /// Keeps the channel of an unanswered request about `queues` until the broker answers.
    /// A refusal closes the channel. If both sides close it at once, lapin closes the
    /// connection (hazard A48).
    pub fn wait_for(&self, queues: &[String], raw: lapin::Channel) {
        let Ok(runtime) = Handle::try_current() else { return };
        // Of several queues it is not known which one does not answer.
        let queue = if let [queue] = queues { Some(queue.clone()) } else { None };
        let unanswered = self.clone();
        unanswered.lock().extend(queue.clone());
        runtime.spawn(async move {
            // Answered after the request, and without an effect on this channel.
            let after = raw.basic_qos(0, BasicQosOptions::default());
            let _ = tokio::time::timeout(LATEST, after).await;
            if let Some(queue) = queue {
                unanswered.lock().remove(&queue);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error for queues that do not answer.
pub fn no_answer_of(queues: &[String]) -> AmqpError {
    let queues = match queues {
        [queue] => format!("the queue {queue:?}"),
        [first, ..] => format!("{first:?} or a queue asked about with it"),
        [] => "a queue".to_owned(),
    };
    AmqpError::NodeDown { why: format!("{queues} does not answer, although the broker does") }
}
