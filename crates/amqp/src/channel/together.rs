//! Operations that are sent together on one channel, of which the broker answers those before
//! the first that it refuses. See `channel` for the wait for an answer.

use std::pin::pin;

use futures::future::{Either, maybe_done, select};
use futures::stream::{FuturesOrdered, TryStreamExt};
use lapin::types::ShortString;

use super::short;
use crate::error::AmqpError;

/// Prepares one operation for each of these queues, to be sent together on one channel.
/// Returns their answers, or the error of the first that failed. That one was refused. Later
/// ones only found the channel closing, and may have no answer.
///
/// # Errors
///
/// A name is too long. Then nothing is sent.
pub fn together<T, O, F>(
    names: &[String],
    operation: F,
) -> Result<impl Future<Output = Result<Vec<T>, lapin::Error>> + use<T, O, F>, AmqpError>
where
    O: Future<Output = Result<T, lapin::Error>>,
    F: Fn(ShortString) -> O,
{
    let names = names.iter().map(|name| short(name)).collect::<Result<Vec<_>, _>>()?;
    let all: FuturesOrdered<O> = names.into_iter().map(operation).collect();
    Ok(all.try_collect())
}

/// Waits for two operations that are sent together on one channel. Returns their answers, or the
/// error of the first that failed, like [`together`]: after a refusal, the broker ignores what
/// follows it, and lapin may never answer it (hazard A60).
pub async fn in_order<T, U, E>(
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<U, E>>,
) -> Result<(T, U), E> {
    let (first, mut second) = (pin!(first), pin!(maybe_done(second)));
    let first = match select(first, second.as_mut()).await {
        Either::Left((first, _)) => first?,
        Either::Right(((), first)) => first.await?,
    };
    second.as_mut().await;
    match second.take_output() {
        Some(second) => Ok((first, second?)),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt;

    use super::*;

    type Answer = Result<u8, &'static str>;

    #[test]
    fn a_refusal_is_returned_although_a_later_request_has_no_answer() {
        let refused = || ready(Err::<u8, _>("refused"));
        let unanswered = pending::<Answer>;
        assert_eq!(in_order(refused(), unanswered()).now_or_never(), Some(Err("refused")));
        let later = in_order(refused(), unanswered());
        assert_eq!(in_order(ready(Ok(1)), later).now_or_never(), Some(Err("refused")));
        assert_eq!(in_order(unanswered(), refused()).now_or_never(), None);
        assert_eq!(in_order(ready(Ok(1)), unanswered()).now_or_never(), None);
    }

    #[test]
    fn the_first_error_in_order_is_returned_also_if_a_later_one_comes_sooner() {
        let (send, receive) = futures::channel::oneshot::channel::<Answer>();
        let first = async { receive.await.unwrap_or(Err("cancelled")) };
        let mut both = pin!(in_order(first, ready(Err::<u8, _>("the channel is closing"))));
        assert_eq!(both.as_mut().now_or_never(), None);
        send.send(Err("refused")).unwrap();
        assert_eq!(both.now_or_never(), Some(Err("refused")));
        let all = in_order(ready(Ok::<_, &str>(1)), ready(Ok(2)));
        assert_eq!(all.now_or_never(), Some(Ok((1, 2))));
    }
}
