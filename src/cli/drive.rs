//! `lockkeeper drive`: answers JSON requests on stdin with this program's own client and
//! administrator. It is the driver by which `lockkeeper-prove` judges them. See
//! docs/proving.md for the requests.

use std::time::Duration;

use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, Client, ClientOptions, Permit, ResizeError, ResizeTo, Verdict,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::acquire::heartbeat;
use super::common::in_runtime;
use super::failure::Failure;
use super::output;
use super::semaphore::target::LockOnBroker;
use super::streams::Stdin;
use super::target::LockLocation;

/// Arguments of `lockkeeper drive`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    place: LockLocation,

    /// AMQP heartbeat interval, 1s to 5m; an unresponsive holder loses its slot after two
    /// to three intervals
    #[arg(long, default_value = "10s", value_parser = heartbeat, help_heading = None)]
    heartbeat: Duration,
}

/// A line on stdin.
#[derive(Debug, Deserialize)]
struct Request {
    #[serde(rename = "do")]
    verb: String,
    lock: String,
    /// Acquire: how long to wait, in milliseconds.
    #[serde(default)]
    wait_ms: u64,
    /// Resize: the number of slots.
    slots: Option<u32>,
}

/// A line on stdout.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// It was done.
    Ok(Done),
    /// It was certainly not done.
    Fail(String),
    /// It may have been done.
    Info(String),
    /// Not an answer: the slot was lost.
    Lost(String),
}

/// Details of an operation that was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    draining: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
}

/// One lock, with its client and its administrator.
struct Driven {
    lock: String,
    target: LockOnBroker,
    client: Client,
    permit: Option<Permit>,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    in_runtime(drive(arguments))
}

async fn drive(arguments: Arguments) -> Result<(), Failure> {
    // Otherwise the end of an input that was closed would end it without a word.
    Stdin::open_or_fail()?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut driven: Option<Driven> = None;
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.map_err(|error| usage(&error.to_string()))?,
            why = lost(driven.as_mut()) => {
                write(&Line::Lost(why))?;
                continue;
            }
        };
        let Some(line) = line else { break };
        let request: Request = serde_json::from_str(&line)
            .map_err(|error| usage(&format!("a request is not understood ({error}): {line}")))?;
        if driven.is_none() {
            driven = Some(Driven::new(&arguments, &request.lock)?);
        }
        if let Some(driven) = &mut driven {
            write(&driven.answer(&request).await)?;
        }
    }
    if let Some(Driven { client, permit, .. }) = driven {
        if let Some(permit) = permit {
            // A slot that was lost needs no release.
            let _ = permit.release().await;
        }
        client.close().await;
    }
    Ok(())
}

fn usage(message: &str) -> Failure {
    Failure::new(Failure::USAGE, message)
}

fn write(line: &Line) -> Result<(), Failure> {
    let line = serde_json::to_string(line);
    let line = line.map_err(|error| Failure::new(Failure::CANT_CREATE, error.to_string()))?;
    output::write(&(line + "\n"))
}

/// Resolves with the reason when the slot is lost, once. Cancel safe.
async fn lost(driven: Option<&mut Driven>) -> String {
    let held = driven.and_then(|driven| driven.permit.is_some().then_some(driven));
    let Some(driven) = held else { return std::future::pending().await };
    let why = match &driven.permit {
        Some(permit) => permit.lost().await.to_string(),
        None => String::new(),
    };
    driven.permit = None;
    why
}

impl Driven {
    fn new(arguments: &Arguments, lock: &str) -> Result<Self, Failure> {
        let target = LockOnBroker::new(arguments.place.named(lock)?);
        // This process acquires only one lock.
        let options = ClientOptions::default().with_heartbeat(arguments.heartbeat).with_warm(0);
        let client = Client::new(target.found.settings.clone(), options);
        Ok(Self { lock: lock.to_owned(), target, client, permit: None })
    }

    async fn answer(&mut self, request: &Request) -> Line {
        if request.lock != self.lock {
            return Line::Fail(format!("this process serves only the lock {:?}", self.lock));
        }
        match request.verb.as_str() {
            "acquire" => self.acquire(Duration::from_millis(request.wait_ms)).await,
            "verify" => self.verify().await,
            "believes" if self.permit.as_ref().is_some_and(Permit::is_valid) => ok(),
            "believes" => not_held(),
            "release" => match self.permit.take() {
                Some(permit) => match permit.release().await {
                    Ok(()) => ok(),
                    Err(why) => Line::Fail(format!("lost: {why}")),
                },
                None => not_held(),
            },
            "resize" => match request.slots {
                Some(slots) => self.resize(slots).await,
                None => Line::Fail("resize requires slots".to_owned()),
            },
            "count" => match self.target.look().await {
                Ok(seen) => Line::Ok(Done { slots: Some(seen.total()), ..Done::default() }),
                Err(failure) => Line::Fail(failure.message.unwrap_or_default()),
            },
            "destroy" => self.destroy().await,
            _ => Line::Fail("unsupported".to_owned()),
        }
    }

    async fn acquire(&mut self, wait: Duration) -> Line {
        if self.permit.is_some() {
            return Line::Fail("this process holds a slot already".to_owned());
        }
        let (lock, options) = (self.target.found.lock(&self.client), AcquireOptions::default());
        let acquired = match wait {
            Duration::ZERO => lock.try_acquire(&options).await,
            wait => lock.acquire_timeout(&options, wait).await,
        };
        match acquired {
            Ok(permit) => {
                let token = permit.token_id().map(|id| id.to_string());
                let (slot, fence) = (permit.slot(), permit.fence());
                self.permit = Some(permit);
                Line::Ok(Done { slot, token, fence, ..Done::default() })
            }
            Err(
                AcquireError::Missing { .. }
                | AcquireError::NoSlots { .. }
                | AcquireError::Full { .. }
                | AcquireError::Contended { .. },
            ) => Line::Fail("full".to_owned()),
            Err(error) => Line::Fail(error.to_string()),
        }
    }

    async fn verify(&self) -> Line {
        let Some(permit) = &self.permit else { return not_held() };
        match permit.verify().await {
            Ok(Verdict::Held) => ok(),
            Ok(Verdict::Draining) => Line::Ok(Done { draining: true, ..Done::default() }),
            Ok(Verdict::Lost) => Line::Fail("lost".to_owned()),
            Err(error) => Line::Info(error.to_string()),
        }
    }

    async fn resize(&self, slots: u32) -> Line {
        let (name, stop) = (&self.target.found.name, CancellationToken::new());
        let (to, desired) = (ResizeTo::Exactly(slots), DesiredSlots::new(slots));
        match self.target.broker.resize(name, to, desired, &stop).await {
            Ok(_) => ok(),
            Err(ResizeError::Broker(error)) => Line::Info(error.to_string()),
            Err(error) => Line::Fail(error.to_string()),
        }
    }

    async fn destroy(&self) -> Line {
        let (name, stop) = (&self.target.found.name, CancellationToken::new());
        match self.target.broker.destroy(name, DesiredSlots::new(0), None, &stop).await {
            Ok(done) if done.left > 0 => Line::Info(format!("{} are still held", done.left)),
            Ok(_) => ok(),
            Err(error) => Line::Info(error.to_string()),
        }
    }
}

fn ok() -> Line {
    Line::Ok(Done::default())
}

fn not_held() -> Line {
    Line::Fail("this process holds no slot".to_owned())
}
