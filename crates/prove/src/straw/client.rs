//! The common part of the straw clients of all protocols: a connection that is opened on demand,
//! and at most one hold with a deadline. See `queue`, `consumer` and `token` for the requests of
//! each protocol.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::session::Session;
use crate::driver::message::{Done, FULL, Line};

/// The client side of one protocol.
pub trait Protocol {
    /// The data of a hold.
    type Hold;

    /// Tries to acquire within this time. Returns `None` if no slot was free.
    async fn acquire(
        &self,
        lazy: &mut LazySession,
        wait: Duration,
    ) -> Result<Option<Held<Self::Hold>>, lapin::Error>;

    /// Returns the details of a hold for the answer.
    fn describe(&self, hold: &Self::Hold) -> Done;

    /// Asks the broker whether the slot is still held. Returns `None` if it is not.
    async fn verify(
        &self,
        lazy: &mut LazySession,
        hold: &mut Self::Hold,
    ) -> Result<Option<Done>, lapin::Error>;

    /// Releases a hold. Returns whether it was still held.
    async fn release(&self, lazy: &mut LazySession, hold: Self::Hold)
    -> Result<bool, lapin::Error>;

    /// Resolves with the reason when the broker ends the hold. Cancel safe.
    async fn revoked(&self, _: &mut Self::Hold) -> String {
        std::future::pending().await
    }

    /// Returns whether this client monitors its connection and its deadline. Clients with some
    /// bugs rely only on their requests.
    fn watches(&self) -> bool {
        true
    }

    /// Returns whether this client acquires although it already holds.
    fn acquires_twice(&self) -> bool {
        false
    }
}

/// A hold.
pub struct Held<H> {
    /// The data of the protocol.
    pub hold: H,
    /// When the last answered proof was sent. Suspension of the machine is ignored, because
    /// straw clients run only for seconds.
    pub proven: Instant,
}

/// The connection of a client.
pub struct LazySession {
    url: String,
    session: Option<Session>,
}

impl LazySession {
    /// Returns the connection. Connects if there is no open connection.
    pub async fn open(&mut self) -> Result<&mut Session, lapin::Error> {
        match self.session.take() {
            Some(session) if session.is_open() => Ok(self.session.insert(session)),
            _ => Ok(self.session.insert(Session::open(&self.url).await?)),
        }
    }

    /// Closes the connection, if there is one, and connects again.
    pub async fn reopen(&mut self) -> Result<&mut Session, lapin::Error> {
        if let Some(session) = self.session.take() {
            session.close();
        }
        self.open().await
    }

    /// Returns the connection if it and the channel of the hold are open.
    pub fn holding(&mut self) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| session.holds())
    }
}

/// A client with at most one hold.
pub struct Client<P: Protocol> {
    protocol: P,
    lazy: LazySession,
    held: Option<Held<P::Hold>>,
}

impl<P: Protocol> Client<P> {
    /// Creates the client without connecting.
    pub fn new(url: String, protocol: P) -> Self {
        Self { protocol, lazy: LazySession { url, session: None }, held: None }
    }

    pub async fn acquire(&mut self, wait: Duration) -> Result<Line, lapin::Error> {
        if self.held.is_some() && !self.protocol.acquires_twice() {
            return Ok(Line::Fail("this process already holds the lock".to_owned()));
        }
        match self.protocol.acquire(&mut self.lazy, wait).await {
            Ok(Some(held)) => {
                let held = self.held.insert(held);
                Ok(Line::Ok(self.protocol.describe(&held.hold)))
            }
            Ok(None) => Ok(Line::Fail(FULL.to_owned())),
            Err(error) => {
                // A slot that was acquired is released when its connection ends.
                self.close();
                Err(error)
            }
        }
    }

    pub async fn verify(&mut self) -> Result<Line, lapin::Error> {
        let Some(held) = &mut self.held else { return Ok(not_held()) };
        let sent = Instant::now();
        if let Ok(Some(done)) = self.protocol.verify(&mut self.lazy, &mut held.hold).await {
            held.proven = sent;
            return Ok(Line::Ok(done));
        }
        self.close();
        Ok(lost())
    }

    pub async fn release(&mut self) -> Result<Line, lapin::Error> {
        let Some(held) = self.held.take() else { return Ok(not_held()) };
        let released = self.protocol.release(&mut self.lazy, held.hold).await;
        if !matches!(released, Ok(true)) {
            self.close();
        }
        Ok(if released? { Line::Ok(Done::default()) } else { lost() })
    }

    pub fn believes(&self) -> Line {
        let (Some(held), Some(session)) = (&self.held, &self.lazy.session) else {
            return not_held();
        };
        let valid = session.holds() && held.proven.elapsed() < session.valid();
        if valid || !self.protocol.watches() { Line::Ok(Done::default()) } else { not_held() }
    }

    /// Resolves once with the reason when the hold is lost. Cancel safe.
    pub async fn lost(&mut self) -> String {
        let why = match (&mut self.held, &mut self.lazy.session) {
            (Some(held), Some(session)) if self.protocol.watches() => {
                let left = session.valid().saturating_sub(held.proven.elapsed());
                tokio::select! {
                    why = session.ended() => why,
                    why = self.protocol.revoked(&mut held.hold) => why,
                    () = tokio::time::sleep(left) => "not verified in time".to_owned(),
                }
            }
            _ => std::future::pending().await,
        };
        self.close();
        why
    }

    /// Discards the hold and closes the connection. Returns the task that closes it.
    pub fn close(&mut self) -> Option<JoinHandle<()>> {
        self.held = None;
        self.lazy.session.take().map(Session::close)
    }
}

fn not_held() -> Line {
    Line::Fail("not held".to_owned())
}

fn lost() -> Line {
    Line::Fail("lost".to_owned())
}
