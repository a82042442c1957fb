//! Requests about queues that may not answer although the broker does: such a request does
//! not end the connection, which other locks use too. See `lane` for requests that must not
//! be left unanswered.

use super::{Lane, Refused};
use crate::semaphore::amqp::unanswered::no_answer_of;
use crate::semaphore::error::BrokerError;

impl Lane {
    /// Waits for the answer to a request about `queues` that changes nothing, or whose late
    /// effect does no harm. Like [`Lane::answer`], but if only this request stays
    /// unanswered, the connection continues, and the error is
    /// [`BrokerError::NodeDown`].
    pub async fn answer_of_queues<T>(
        &mut self,
        what: &'static str,
        queues: &[String],
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<Result<T, Refused>, BrokerError> {
        let first = queues.first().map_or("", String::as_str);
        match self.answer_in_time(first, operation).await {
            Some(answer) => answer,
            None if self.may_leave_unanswered() => {
                self.leave_unanswered(queues);
                // Another channel shows whether the broker answers.
                self.channel().await?;
                Err(no_answer_of(queues))
            }
            None => Err(self.unanswered(what)),
        }
    }

    /// Whether this channel may be given up: it has no state, and the broker does not block
    /// the connection.
    fn may_leave_unanswered(&self) -> bool {
        !self.is_pinned() && !self.conn().is_blocked()
    }

    /// Gives up the channel, on which a request about `queues` is unanswered.
    pub fn leave_unanswered(&mut self, queues: &[String]) {
        if let Some(channel) = self.give_up() {
            self.conn().unanswered.wait_for(queues, channel);
        }
    }

    /// Returns an error if a request about one of these queues is still unanswered.
    pub fn check_answered(&self, queues: &[String]) -> Result<(), BrokerError> {
        match queues.iter().find(|queue| self.conn().unanswered.contains(queue)) {
            Some(queue) => Err(no_answer_of(std::slice::from_ref(queue))),
            None => Ok(()),
        }
    }
}
