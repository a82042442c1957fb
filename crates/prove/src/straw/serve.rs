//! Answers the requests of the driver protocol with a straw client, on stdin and stdout. See
//! `queue`, `consumer` and `token` for the clients.

use std::io::{self, Write};
use std::time::Duration;

use lockkeeper_plan::naming::LockName;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::admin::Admin;
use super::bug::Bug;
use super::client::{Client, Protocol};
use super::consumer::OnlyConsumer;
use super::queue::Queue;
use super::token::Tokens;
use crate::driver::message::{Line, Request};
use crate::history::{Rules, Verb};

/// The options of a straw client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrawOptions {
    /// URL of the broker.
    pub url: String,
    /// The protocol of the client.
    pub protocol: Rules,
    /// The seeded bug. `None` for a correct client.
    pub bug: Option<Bug>,
    /// Number of consecutive missing slots after which a sweep of the administrator ends, at
    /// least 1.
    pub overshoot: u32,
}

/// Error that stops a straw client.
#[derive(Debug, thiserror::Error)]
pub enum StrawError {
    /// There is no straw client of the protocol.
    #[error(
        "there is no straw client of protocol {0:?}. Use ExclusiveQueue, ExclusiveConsumer or Token"
    )]
    Protocol(Rules),
    /// The bug belongs to another protocol.
    #[error("the bug {} belongs to protocol {:?}. Set --protocol accordingly", .0.name(), .0.protocol())]
    Bug(Bug),
    /// A request is invalid.
    #[error("invalid request: {0}")]
    Request(String),
    /// Stdin or stdout failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The client and the administrator of one lock.
struct Straw<P: Protocol> {
    client: Client<P>,
    admin: Admin,
}

impl StrawOptions {
    fn check(&self) -> Result<(), StrawError> {
        match (self.bug, self.protocol) {
            (_, Rules::None | Rules::AmqpLocksPython) => Err(StrawError::Protocol(self.protocol)),
            (Some(bug), protocol) if bug.protocol() != protocol => Err(StrawError::Bug(bug)),
            _ => Ok(()),
        }
    }

    fn lock(&self, name: &str) -> Result<LockName, StrawError> {
        let protocol = self.protocol.protocol().ok_or(StrawError::Protocol(self.protocol))?;
        let lock = LockName::new(name).map_err(|error| StrawError::Request(error.to_string()))?;
        Ok(lock.with_protocol(protocol))
    }

    fn straw<P: Protocol>(
        &self,
        lock: LockName,
        protocol: impl FnOnce(LockName, Option<Bug>) -> P,
    ) -> Straw<P> {
        let client = Client::new(self.url.clone(), protocol(lock.clone(), self.bug));
        Straw { client, admin: Admin::new(self.url.clone(), lock, self.bug, self.overshoot) }
    }
}

type Lines = tokio::io::Lines<BufReader<tokio::io::Stdin>>;

/// Answers requests until stdin ends. One process is one client of one lock, which the first
/// request names.
///
/// # Errors
///
/// [`StrawError`] if a request is invalid, or if stdin or stdout fails.
pub async fn serve(options: &StrawOptions) -> Result<(), StrawError> {
    options.check()?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let Some(line) = lines.next_line().await? else { return Ok(()) };
    let request = parse(&line)?;
    let lock = options.lock(&request.lock)?;
    match options.protocol {
        Rules::ExclusiveConsumer => {
            let client = |lock, bug| OnlyConsumer { lock, bug };
            options.straw(lock, client).serve(request, lines).await
        }
        Rules::Token => options.straw(lock, Tokens::new).serve(request, lines).await,
        _ => options.straw(lock, |lock, bug| Queue { lock, bug }).serve(request, lines).await,
    }
}

fn parse(line: &str) -> Result<Request, StrawError> {
    serde_json::from_str(line).map_err(|error| StrawError::Request(error.to_string()))
}

fn write(line: &Line) -> Result<(), StrawError> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

impl<P: Protocol> Straw<P> {
    async fn serve(mut self, first: Request, mut lines: Lines) -> Result<(), StrawError> {
        write(&self.answer(&first).await)?;
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line?,
                why = self.client.lost() => {
                    write(&Line::Lost(why))?;
                    continue;
                }
            };
            let Some(line) = line else { break };
            write(&self.answer(&parse(&line)?).await)?;
        }
        if let Some(closing) = self.client.close() {
            let _ = closing.await;
        }
        Ok(())
    }

    async fn answer(&mut self, request: &Request) -> Line {
        let wait = Duration::from_millis(request.wait_ms.unwrap_or_default());
        let answer = match request.verb {
            Verb::Acquire => self.client.acquire(wait).await,
            Verb::Verify => self.client.verify().await,
            Verb::Believes => Ok(self.client.believes()),
            Verb::Release => self.client.release().await,
            Verb::Resize => match request.slots {
                Some(slots) => self.admin.resize(slots).await,
                None => Ok(Line::Fail("resize requires `slots`".to_owned())),
            },
            Verb::Count => self.admin.count().await,
            Verb::Destroy => self.admin.destroy().await,
        };
        answer.unwrap_or_else(|error| Line::Info(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_belongs_to_one_protocol() {
        for bug in Bug::ALL {
            for protocol in
                [Rules::ExclusiveQueue, Rules::ExclusiveConsumer, Rules::Token, Rules::None]
            {
                let url = String::new();
                let options = StrawOptions { url, protocol, bug: Some(bug), overshoot: 1 };
                assert_eq!(options.check().is_ok(), bug.protocol() == protocol, "{options:?}");
            }
        }
    }
}
