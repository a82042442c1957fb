//! `lockkeeper semaphore`: administering and looking at semaphores on a broker,
//! without Kubernetes. One verb is one file; here is what they share.

mod count;
mod create;
mod destroy;
mod draining;
mod grow;
pub(super) mod holders;
mod shrink;
mod verify;
mod wait;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::draining::Draining;
use super::output::Format;
use super::target::{Found, Place, resource};
use super::{Failure, duration, in_runtime, say};
use crate::plan::naming::{LockName, Protocol, QueueType};
use crate::plan::semaphore::{DEFAULT_OVERSHOOT, SlotWish, SlotsSeen};
use crate::semaphore::{Broker, BrokerError, BrokerOptions, ResizeError, ResizeTo};

/// Arguments of `lockkeeper semaphore`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a semaphore
    Create(create::Arguments),
    /// Add slots, or tokens
    Grow(grow::Arguments),
    /// Remove slots, or tokens; who holds one keeps it until they release it
    Shrink(shrink::Arguments),
    /// Remove a semaphore; who holds a slot keeps it until they release it
    Destroy(destroy::Arguments),
    /// How many slots there are, are held and are free
    Count(count::Arguments),
    /// Who holds which slot, or a token
    Holders(holders::Arguments),
    /// Whether the slots are there without holes, strays and foreign queues
    Verify(verify::Arguments),
    /// Wait until it, or one slot of it, is taken or released
    Wait(wait::Arguments),
}

/// Which semaphore.
#[derive(Debug, clap::Args)]
struct Which {
    /// Its name on the broker, such as ci.deploy; to look at one, also sem/NAME
    name: String,

    #[command(flatten)]
    place: Place,
}

/// What is kept beside each slot.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "What is kept beside each slot")]
struct Records {
    /// Give each acquisition of a slot a number that is greater than any before
    #[arg(long)]
    fencing: bool,

    /// How long a slot rests whose holder ended without releasing it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_delay: Option<Duration>,
}

impl Records {
    /// The lock delay of the slots' records, if they are to have any.
    fn wish(&self, name: &LockName) -> Result<Option<Duration>, Failure> {
        let delay = self.lock_delay.or(self.fencing.then_some(Duration::ZERO));
        let refused = match name.protocol() {
            // Whose tokens have numbers without a record.
            Protocol::Token(QueueType::Quorum) if self.lock_delay.is_none() => return Ok(None),
            Protocol::Token(_) => {
                "with --protocol Token there is no --lock-delay, and --fencing only with --queue-type Quorum"
            }
            _ => {
                "--fencing and --lock-delay are not for this profile: its clients know no records beside the slots"
            }
        };
        if delay.is_some() && name.record_queue(1).is_none() {
            return Err(Failure::new(Failure::USAGE, refused));
        }
        Ok(delay)
    }
}

/// How the answer looks.
#[derive(Debug, clap::Args)]
struct Form {
    /// The form of the answer
    #[arg(long, short, value_enum, default_value_t, help_heading = None)]
    output: Format,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    in_runtime(async {
        match arguments.verb {
            Verb::Create(arguments) => create::run(arguments).await,
            Verb::Grow(arguments) => grow::run(arguments).await,
            Verb::Shrink(arguments) => shrink::run(arguments).await,
            Verb::Destroy(arguments) => destroy::run(arguments).await,
            Verb::Count(arguments) => count::run(arguments).await,
            Verb::Holders(arguments) => holders::run(arguments).await,
            Verb::Verify(arguments) => verify::run(arguments).await,
            Verb::Wait(arguments) => wait::run(arguments).await,
        }
    })
}

/// A semaphore at its broker.
pub(super) struct Target {
    pub found: Found,
    pub broker: Broker,
}

impl Target {
    /// Connects nothing.
    pub fn new(found: Found) -> Self {
        let broker = Broker::new(found.settings.clone(), BrokerOptions::default());
        Self { found, broker }
    }
}

impl Which {
    /// The semaphore, to look at.
    async fn find(&self) -> Result<Target, Failure> {
        Ok(Target::new(self.place.find(&self.name).await?))
    }

    /// The semaphore, to change: not one that the operator makes as it should be.
    async fn find_to_change(&self) -> Result<Target, Failure> {
        if resource(&self.name).is_some() {
            let message = "a resource's slots are the operator's to change: use kubectl scale, or kubectl delete";
            return Err(Failure::new(Failure::USAGE, message));
        }
        self.find().await
    }
}

impl Target {
    /// What the broker has of it.
    async fn look(&self) -> Result<SlotsSeen, Failure> {
        let name = &self.found.name;
        let mark = self.broker.find_mark(name, DEFAULT_OVERSHOOT).await.map_err(|e| failed(&e))?;
        let to = mark + DEFAULT_OVERSHOOT;
        self.broker.observe(name, to, to).await.map_err(|error| failed(&error))
    }
}

/// Changes how many slots the semaphore has, says so, and prints what it has then.
async fn resize(
    which: &Which,
    form: &Form,
    to: ResizeTo,
    records: &Records,
    draining: Draining,
) -> Result<(), Failure> {
    let target = which.find_to_change().await?;
    let name = &target.found.name;
    let wish = SlotWish { records: records.wish(name)?, ..SlotWish::new(0) };
    let resized =
        target.broker.resize(name, to, wish, &CancellationToken::new()).await.map_err(|error| {
            match error {
                ResizeError::Broker(error) => failed(&error),
                error => Failure::new(Failure::USAGE, error.to_string()),
            }
        })?;
    let units = target.found.units();
    say(format!("{name} has {} {units}, before {}", resized.after, resized.before));
    let seen = draining.tokens(&target, resized.after, &resized.done).await?;
    count::print(form, &target, &seen).await
}

/// How many slots there are, where there are no holes.
fn slots(seen: &SlotsSeen) -> u32 {
    u32::try_from(seen.slots.len()).unwrap_or(u32::MAX)
}

pub(super) fn failed(error: &BrokerError) -> Failure {
    let code = match error {
        BrokerError::IncompatibleQueue { .. } => Failure::USAGE,
        BrokerError::MutexBusy { .. } => Failure::NOT_ACQUIRED,
        _ => Failure::UNAVAILABLE,
    };
    Failure::new(code, error.to_string())
}
