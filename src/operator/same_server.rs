//! Proofs that the connections of two objects lead to the same server, by asking it. See
//! `conflict` for what follows from them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_plan::ErrorClass;

use super::fetch::{Connected, FetchError};

/// Time limit for the servers of competing objects, which are queried concurrently. A
/// server that does not respond proves nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time for which an answer, or its absence, is cached.
const FRESH: Duration = Duration::from_secs(30);

/// Time after which an unused answer is dropped.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// Connections that were found to lead to the same server. Checked again after a restart.
#[derive(Default)]
pub struct Proofs(Mutex<HashMap<Question, Answer>>);

/// Name of the lock or queue, and the numbers of our connection and the other object's.
type Question = (String, u64, u64);

struct Answer {
    asked: Instant,
    /// `None` until there is an answer.
    is_same: Option<bool>,
}

impl Proofs {
    /// Returns whether the object behind `theirs` has proven access to the server behind
    /// `ours`.
    ///
    /// `reached` is the server of its last successful login, from its status. It counts
    /// while the server cannot be queried, so that an outage does not change the owner of
    /// a lock. An object whose login is rejected owns nothing.
    pub async fn proves<H>(
        &self,
        name: &str,
        ours: &Connected<H>,
        theirs: Result<Connected<H>, FetchError>,
        reached: Option<&str>,
        ask: impl AsyncFnOnce(&H) -> Result<bool, ErrorClass>,
    ) -> bool {
        let was_here = reached == Some(ours.backend.as_str());
        let theirs = match theirs {
            Ok(theirs) => theirs,
            Err(error) => return was_here && error.class() == ErrorClass::Transient,
        };
        if theirs.number == ours.number {
            return true;
        }
        let question = (name.to_owned(), ours.number, theirs.number);
        let (is_fresh, mut answer) = self.last(&question);
        if !is_fresh {
            answer = self.remember(question, within_patience(ask(&theirs.handle)).await);
        }
        answer.unwrap_or(was_here && theirs.backend == ours.backend)
    }

    /// Returns whether the last answer is still fresh, and that answer.
    fn last(&self, question: &Question) -> (bool, Option<bool>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, answer| answer.asked.elapsed() < FORGOTTEN);
        let last = all.get(question);
        let is_fresh = last.is_some_and(|answer| answer.asked.elapsed() < FRESH);
        (is_fresh, last.and_then(|answer| answer.is_same))
    }

    /// Records an answer. Without a new one, the last answer remains valid.
    fn remember(&self, question: Question, is_same: Option<bool>) -> Option<bool> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let answer = all.entry(question).or_insert(Answer { asked: now, is_same: None });
        *answer = Answer { asked: now, is_same: is_same.or(answer.is_same) };
        answer.is_same
    }
}

/// Returns the answer, or `None` if there is none in time. A rejection is an answer.
async fn within_patience(asking: impl Future<Output = Result<bool, ErrorClass>>) -> Option<bool> {
    match tokio::time::timeout(PATIENCE, Box::pin(asking)).await {
        Ok(Ok(is_same)) => Some(is_same),
        Ok(Err(ErrorClass::Invalid)) => Some(false),
        Ok(Err(ErrorClass::Waiting(_) | ErrorClass::Transient)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::fetch::Kept;

    fn connected(backend: &str, number: u64) -> Connected<()> {
        Connected { backend: backend.to_owned(), number, handle: (), kept: Kept::default() }
    }

    async fn proves(
        theirs: Connected<()>,
        reached: &str,
        answer: Result<bool, ErrorClass>,
    ) -> bool {
        let ours = connected("b:5672/", 1);
        Proofs::default()
            .proves("l", &ours, Ok(theirs), Some(reached), async |(): &()| answer)
            .await
    }

    #[tokio::test]
    async fn an_address_alone_proves_nothing_and_a_login_elsewhere_neither() {
        let (here, there) = (|| connected("b:5672/", 2), || connected("c:5672/", 2));
        let silent = || Err(ErrorClass::Transient);
        assert!(proves(connected("b:5672/", 1), "", silent()).await, "one connection");
        assert!(proves(there(), "c:5672/", Ok(true)).await, "another address of one server");
        assert!(!proves(here(), "", Err(ErrorClass::Invalid)).await, "a refused login");
        assert!(!proves(here(), "b:5672/", Err(ErrorClass::Invalid)).await, "no login any more");
        assert!(!proves(here(), "", silent()).await, "never logged in");
        assert!(proves(here(), "b:5672/", silent()).await, "the server is down");
        assert!(!proves(there(), "b:5672/", silent()).await, "it is elsewhere now");
        assert!(!proves(there(), "c:5672/", Ok(false)).await, "two servers");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_waited_for_five_seconds() {
        let started = Instant::now();
        assert_eq!(within_patience(std::future::pending()).await, None);
        assert!(started.elapsed() >= PATIENCE && started.elapsed() < PATIENCE * 4);
    }

    #[tokio::test]
    async fn without_a_new_answer_the_last_one_counts_and_a_silent_server_is_asked_once() {
        let proofs = Proofs::default();
        let (ours, asked) = (connected("b:5672/", 1), std::cell::Cell::new(0));
        let ask = async |answer: Result<bool, ErrorClass>| {
            let theirs = connected("c:5672/", 2);
            let ask = async |(): &()| {
                asked.set(asked.get() + 1);
                answer
            };
            proofs.proves("l", &ours, Ok(theirs), None, ask).await
        };
        let expire = || {
            for answer in proofs.0.lock().unwrap().values_mut() {
                answer.asked -= FRESH;
            }
        };
        assert!(!ask(Err(ErrorClass::Transient)).await);
        assert!(!ask(Ok(true)).await, "not asked again so soon");
        assert_eq!(asked.get(), 1);
        expire();
        assert!(ask(Ok(true)).await);
        expire();
        assert!(ask(Err(ErrorClass::Transient)).await);
        expire();
        assert!(!ask(Err(ErrorClass::Invalid)).await);
    }
}
