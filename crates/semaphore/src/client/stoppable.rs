//! A background task that can be stopped without waiting for the runtime. Aborting a task of tokio
//! and waiting for its end takes as long as a request to the broker, because another thread has to
//! wake up and drop it. See `heartbeat` for the task that a permit runs.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};

use tokio::task::AbortHandle;

type Running = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// A running task. It goes on if this is dropped.
pub struct Stoppable {
    /// `None` once the task has ended. Locked while it is polled.
    running: Arc<Mutex<Running>>,
    task: AbortHandle,
}

impl Stoppable {
    /// Spawns the future. Must be called in a runtime.
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let running: Arc<Mutex<Running>> = Arc::new(Mutex::new(Some(Box::pin(future))));
        let polled = Arc::clone(&running);
        let task = tokio::spawn(poll_fn(move |context| {
            let mut running = polled.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(future) = running.as_mut() {
                ready!(future.as_mut().poll(context));
            }
            *running = None;
            Poll::Ready(())
        }));
        Self { running, task: task.abort_handle() }
    }

    /// Stops the task at its current await point. The future is dropped when this returns. Does not
    /// wait, except while another thread polls the future. The future must not call this itself.
    pub fn stop(&self) {
        let future = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(future);
        // Nothing would wake it any more.
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// Spawns a task that sends when it runs, and waits forever. The other receiver fails when the
    /// task is dropped.
    fn waiting() -> (Stoppable, oneshot::Receiver<()>, oneshot::Receiver<()>) {
        let ((runs, is_running), (kept, is_dropped)) = (oneshot::channel(), oneshot::channel());
        let task = Stoppable::spawn(async move {
            let _kept = kept;
            runs.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        (task, is_running, is_dropped)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_is_dropped_when_its_stop_returns() {
        for _ in 0..100 {
            let (task, is_running, mut is_dropped) = waiting();
            is_running.await.unwrap();
            task.stop();
            assert_eq!(is_dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        }
    }

    #[tokio::test]
    async fn a_task_that_is_stopped_before_it_ran_never_runs_and_leaves_nothing_behind() {
        let (task, is_running, mut is_dropped) = waiting();
        task.stop();
        assert_eq!(is_dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(is_running.await.is_err());
        while !task.task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_task_ends_by_itself_and_can_still_be_stopped() {
        let (task, handle) = {
            let (done, is_done) = oneshot::channel();
            let task = Stoppable::spawn(async move { done.send(()).unwrap() });
            (task, is_done)
        };
        tokio::time::timeout(Duration::from_secs(60), handle).await.unwrap().unwrap();
        task.stop();
    }
}
