//! Where a hold reports its lock: on the standard streams, or in the state file and to the
//! processes that ask, if it is in the background.

use std::convert::Infallible;

use lockkeeper_semaphore::Permit;

use super::background::{Background, Request};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::output;
use crate::cli::state_file::State;
use crate::cli::target::FoundLock;

/// The place.
pub(super) enum Reports {
    Streams,
    Background(Box<Background>),
}

impl Reports {
    /// Waits until the process that started this one has ended, if that means to give up
    /// waiting. Cancel safe.
    pub async fn left_alone(&mut self) {
        match self {
            Self::Streams => std::future::pending().await,
            Self::Background(background) => background.left_alone().await,
        }
    }

    /// Reports that the lock is held.
    pub async fn held(
        &mut self,
        what: &str,
        found: &FoundLock,
        permit: &Permit,
        identity: Option<String>,
    ) -> Result<(), Failure> {
        match self {
            Self::Streams => output::write(&format!("holding {what}\n")),
            Self::Background(background) => {
                background.announce(what, found, permit, identity).await
            }
        }
    }

    /// Reports that the slot was removed.
    pub fn draining(&self, message: &str) {
        match self {
            Self::Streams => say(message),
            Self::Background(background) => background.note(State::Draining, message),
        }
    }

    /// Reports that the lock was lost, before the end of the process.
    pub fn lost(&self, why: &str) {
        if let Self::Background(background) = self {
            background.note(State::Lost, why);
        }
    }

    /// Answers questions about the lock as long as it is polled. Cancel safe.
    pub async fn answer(&self, permit: &Permit) -> Infallible {
        match self {
            Self::Streams => std::future::pending().await,
            Self::Background(background) => background.answer(permit).await,
        }
    }

    /// Waits until another process asks to release the lock. Cancel safe.
    pub async fn requested(&self) -> Request {
        match self {
            Self::Streams => std::future::pending().await,
            Self::Background(background) => background.requested().await,
        }
    }

    /// Reports that a limit of the hold is reached.
    pub fn limited(&self, why: &str) {
        if let Self::Streams = self {
            say(why);
        }
    }

    /// Reports that the lock was released, and why, if that was not requested.
    pub fn released(&self, what: &str, why: &str) -> Result<(), Failure> {
        match self {
            Self::Streams => output::write(&format!("released {what}\n")),
            Self::Background(background) => {
                background.note(State::Released, why);
                Ok(())
            }
        }
    }

    /// Answers the request to release the lock. `lost` is why it had been lost before, if so.
    pub fn answer_request(&self, request: Request, what: &str, lost: Option<&str>) {
        self.withdraw();
        request.answer(what, lost);
    }

    /// Removes the state file.
    pub fn withdraw(&self) {
        if let Self::Background(background) = self {
            background.remove_file();
        }
    }
}
