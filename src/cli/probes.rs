//! Answers HTTP probes about a lock, for a container that holds the lock for others of its Pod.
//! `/held` succeeds only while the lock is held, and `/lost` fails once it was lost. See
//! `operator::server` for the limits of the server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use lockkeeper_semaphore::Permit;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use crate::operator::server;

/// The lock, as far as this process knows.
#[derive(Default)]
enum State {
    #[default]
    Waiting,
    Held(Arc<Permit>),
    Lost(String),
    Released,
}

/// The answers to probes, which change with the lock. Without a server nothing asks.
#[derive(Clone, Default)]
pub(super) struct Probes(Arc<Mutex<State>>);

impl Probes {
    /// Starts to answer at this address, in the background until the runtime ends.
    pub async fn listen(&self, address: SocketAddr) -> Result<(), Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let message = format!("--listen {address}: {error}");
            Failure::new(Failure::UNAVAILABLE, message)
        })?;
        let (held, lost) = (self.clone(), self.clone());
        let app = Router::new()
            .route("/held", get(async move || held.held()))
            .route("/lost", get(async move || lost.lost()));
        tokio::spawn(server::serve(listener, app, CancellationToken::new()));
        Ok(())
    }

    /// Records that the lock is held.
    pub fn acquired(&self, permit: &Arc<Permit>) {
        self.set(State::Held(Arc::clone(permit)));
    }

    /// Records why the lock was lost.
    pub fn failed(&self, why: &str) {
        self.set(State::Lost(why.to_owned()));
    }

    /// Records that the lock is being released. Afterwards the caller's permit is the only one.
    pub fn released(&self) {
        self.set(State::Released);
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn held(&self) -> (StatusCode, String) {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // As far as known at the moment of the answer: the process may have been suspended.
            State::Held(permit) if permit.is_valid() => (StatusCode::OK, "held\n".to_owned()),
            state => (StatusCode::SERVICE_UNAVAILABLE, text(state)),
        }
    }

    fn lost(&self) -> (StatusCode, String) {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Held(permit) if permit.is_valid() => (StatusCode::OK, "held\n".to_owned()),
            state @ (State::Waiting | State::Released) => (StatusCode::OK, text(state)),
            state => (StatusCode::SERVICE_UNAVAILABLE, text(state)),
        }
    }
}

fn text(state: &State) -> String {
    match state {
        State::Waiting => "waiting for the lock\n".to_owned(),
        State::Held(_) => "lost\n".to_owned(),
        State::Lost(why) => format!("lost: {why}\n"),
        State::Released => "released\n".to_owned(),
    }
}
