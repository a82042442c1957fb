//! Requests about queues that may not answer although the broker does: such a request does
//! not end the connection, which other callers use too. Distinguishes such a queue from a slow
//! broker. See `channel` for requests that must not be left unanswered.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::BasicQosOptions;

use super::{Channel, Refused};
use crate::connection::Connection;
use crate::error::AmqpError;
use crate::unanswered::no_answer_of;

/// Number of consecutive requests on another channel that the broker must answer promptly
/// before a queue counts as the only one that does not answer.
const PROMPT_ANSWERS: u32 = 3;

/// Maximum time for a prompt answer.
const PROMPT: Duration = Duration::from_millis(500);

/// Pause before each of these requests.
const PAUSE: Duration = Duration::from_millis(400);

/// What came of a request that was not answered in time.
enum Late<T> {
    Answered(T),
    /// Meanwhile the broker answered other requests promptly, or this error ended the
    /// connection.
    OthersAnswered(Result<(), AmqpError>),
}

impl Channel {
    /// Waits for the answer to a request about `queues` that changes nothing, or whose late
    /// effect does no harm. Like [`Channel::answer`], but if only this request stays
    /// unanswered, the connection continues, and the error is
    /// [`AmqpError::NodeDown`].
    ///
    /// A late answer alone is no evidence of a node that is down: the broker or this machine
    /// may be slow. Therefore the answer is awaited further, until the broker has answered
    /// several requests on another channel promptly, or the connection's limit passes.
    pub async fn answer_of_queues<T>(
        &mut self,
        what: &'static str,
        queues: &[String],
        operation: impl Future<Output = Result<T, lapin::Error>>,
    ) -> Result<Result<T, Refused>, AmqpError> {
        let first = queues.first().map_or("", String::as_str);
        let mut operation = pin!(operation);
        if let Some(answer) = self.answer_in_time(first, operation.as_mut()).await {
            return answer;
        }
        if !self.may_leave_unanswered() {
            return Err(self.unanswered(what));
        }
        let connection = Arc::clone(self.connection());
        let late = async {
            tokio::select! {
                biased;
                answer = operation => Late::Answered(answer),
                others = answers_promptly(&connection) => Late::OthersAnswered(others),
            }
        };
        self.busy = true;
        let late = tokio::time::timeout(connection.operation_timeout, late).await;
        self.busy = false;
        match late {
            Ok(Late::Answered(answer)) => self.answered(first, answer),
            Ok(Late::OthersAnswered(others)) => {
                others?;
                self.leave_unanswered(queues);
                Err(no_answer_of(queues))
            }
            Err(_) => Err(self.unanswered(what)),
        }
    }

    /// Whether this channel may be given up: it has no state, and the broker does not block
    /// the connection.
    fn may_leave_unanswered(&self) -> bool {
        !self.is_pinned() && !self.connection().is_blocked()
    }

    /// Gives up the channel, on which a request about `queues` is unanswered.
    pub fn leave_unanswered(&mut self, queues: &[String]) {
        if let Some(raw) = self.give_up() {
            self.connection().unanswered.wait_for(queues, raw);
        }
    }

    /// Returns an error if a request about one of these queues is still unanswered.
    pub fn check_answered(&self, queues: &[String]) -> Result<(), AmqpError> {
        match queues.iter().find(|queue| self.connection().unanswered.contains(queue)) {
            Some(queue) => Err(no_answer_of(std::slice::from_ref(queue))),
            None => Ok(()),
        }
    }
}

/// Returns once the broker has answered [`PROMPT_ANSWERS`] consecutive requests promptly.
async fn answers_promptly(connection: &Arc<Connection>) -> Result<(), AmqpError> {
    let mut channel = Channel::fresh(connection).await?;
    let mut prompt = 0;
    while prompt < PROMPT_ANSWERS {
        tokio::time::sleep(PAUSE).await;
        let sent = Instant::now();
        let raw = channel.raw().await?;
        // Without an effect on this channel.
        let asking = raw.basic_qos(0, BasicQosOptions::default());
        channel.answer("to basic.qos", "", asking).await?.map_err(|refused| refused.error)?;
        prompt = if sent.elapsed() < PROMPT { prompt + 1 } else { 0 };
    }
    Ok(())
}
