//! Injects faults into a process, from any task: cuts its connections, or kills it. Each fault
//! is recorded before it takes effect. See `actor` for the process itself.

use std::sync::Arc;
use std::time::Duration;

use super::aims::fault;
use crate::driver::group::Control;
use crate::history::{CUT, KILL, Sender, What};
use crate::wire::{Method, Proxy, Recorder, Sprung, When};

/// Time within which a released request must pass the proxy, and the broker must answer it.
const LIMIT: Duration = Duration::from_secs(2);

/// A handle on a process that injects faults. The proxy of the process exists as long as one of
/// its handles.
#[derive(Clone)]
pub struct Cutter {
    pub(super) process: u32,
    pub(super) recorder: Recorder,
    pub(super) proxy: Arc<Proxy>,
    pub(super) control: Control,
}

impl Cutter {
    fn suffers(&self, fault: String) {
        self.recorder.record(What::Fault { process: Some(self.process), fault });
    }

    /// Returns a predicate for the `n`th time that the client sends this method from now on,
    /// which records the cut.
    fn awaited(
        &self,
        method: &str,
        when: When,
        n: usize,
    ) -> impl FnMut(&Method) -> bool + Send + use<> {
        // The proxy keeps the predicate, which must therefore not keep the proxy.
        let (recorder, process, method) = (self.recorder.clone(), self.process, method.to_owned());
        let mut sent = 0;
        move |one: &Method| {
            let mine = one.sender == Sender::Client && one.name == method;
            sent += usize::from(mine);
            let found = mine && sent == n;
            if found {
                let fault = fault(when, &method);
                recorder.record(What::Fault { process: Some(process), fault });
            }
            found
        }
    }

    /// Arms a cut of the connection on which the client sends this method for the `n`th time
    /// from now on.
    pub fn cut_at(&self, method: &str, when: When, n: usize) -> Sprung {
        self.proxy.cut_at(when, self.awaited(method, when, n))
    }

    /// Cuts the connection of a request that waits at the gate. Returns when the connection has
    /// ended at the broker too.
    pub async fn cut_before(&self, connection: usize, method: &str) {
        self.suffers(fault(When::Before, method));
        self.end(connection).await;
    }

    /// Releases a request that waits at the gate, and cuts its connection when the broker has
    /// answered, before the client receives the answer. `release` releases the request, and
    /// `answered` resolves when the broker has answered. Returns when the connection has ended
    /// at the broker too.
    pub async fn cut_after(
        &self,
        connection: usize,
        method: &str,
        release: impl FnOnce(),
        answered: impl Future<Output = ()>,
    ) {
        let held = self.proxy.hold_at(When::After, self.awaited(method, When::After, 1));
        release();
        let passed = async {
            if held.within(LIMIT).await.is_ok() {
                answered.await;
            }
        };
        let _ = tokio::time::timeout(LIMIT, passed).await;
        self.proxy.disarm();
        self.end(connection).await;
    }

    /// Like [`Cutter::cut_after`], for a request that the broker does not answer. The connection
    /// is cut when the broker is assumed to have processed the request, after 100 ms.
    pub async fn cut_after_unanswered(
        &self,
        connection: usize,
        method: &str,
        release: impl FnOnce(),
    ) {
        let ended = self.proxy.ended(Some(connection));
        let cut = self.cut_at(method, When::After, 1);
        release();
        let passed = cut.within(LIMIT).await.is_ok();
        self.proxy.disarm();
        if passed {
            ended.await;
        }
    }

    /// Cuts all connections of the process, for both sides.
    pub fn cut(&self) {
        self.suffers(CUT.to_owned());
        self.proxy.cut();
    }

    /// Like [`Cutter::cut`]. Returns when the connections have ended at the broker too.
    pub async fn cut_all(&self) {
        let ended = self.proxy.ended(None);
        self.cut();
        ended.await;
    }

    /// Kills the process (SIGKILL). Does not wait for its end.
    pub fn kill(&self) {
        self.suffers(KILL.to_owned());
        self.control.kill();
    }

    async fn end(&self, connection: usize) {
        let ended = self.proxy.ended(Some(connection));
        self.proxy.cut_connection(connection);
        ended.await;
    }
}

#[cfg(test)]
mod tests;
