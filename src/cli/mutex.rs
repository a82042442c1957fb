//! `lockkeeper mutex`: inspects true mutexes on a broker, and revokes them from their
//! holder. See `semaphore` for the same with slots, and `exec` and `hold` for taking a
//! mutex.

use std::time::Duration;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::semaphore::Holder;
use lockkeeper_semaphore::BrokerError;
use serde::Serialize;

use super::common::{duration, in_runtime, say};
use super::failure::Failure;
use super::output::{self, or_dash};
use super::semaphore::holders::{self, live_of};
use super::semaphore::target::{Form, LockOnBroker, failed};
use super::semaphore::{count, revoke, wait};
use super::target::{BrokerLocation, FoundLock};

/// Arguments of `lockkeeper mutex`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print whether the mutex is held, by which client, and how many clients wait
    Count(Shown),
    /// List the holder of the mutex
    Holders(Shown),
    /// List the clients that wait for the mutex
    Waiters(Shown),
    /// Revoke the mutex from its holder
    Revoke(Revoke),
    /// Verify that clients can acquire the mutex: no ordinary queue has its name
    Verify(Target),
    /// Wait until the mutex is taken or released
    Wait(Wait),
}

/// The mutex.
#[derive(Debug, clap::Args)]
struct Target {
    /// Name of the mutex on the broker, for example ci.deploy
    name: String,

    #[command(flatten)]
    broker: BrokerLocation,
}

/// The mutex of a verb with a table.
#[derive(Debug, clap::Args)]
struct Shown {
    #[command(flatten)]
    which: Target,

    #[command(flatten)]
    form: Form,
}

/// Arguments of `lockkeeper mutex revoke`.
#[derive(Debug, clap::Args)]
struct Revoke {
    #[command(flatten)]
    which: Target,

    #[command(flatten)]
    how: revoke::How,
}

/// Arguments of `lockkeeper mutex wait`.
#[derive(Debug, clap::Args)]
struct Wait {
    #[command(flatten)]
    which: Target,

    /// State to wait for
    #[arg(long, value_enum, help_heading = None)]
    until: Until,

    /// Give up after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = None)]
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// A client holds it
    Taken,
    /// No client holds it
    Released,
}

/// Exit code if a fault was found.
const WRONG: u8 = 1;

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    in_runtime(async {
        match arguments.verb {
            Verb::Count(Shown { which, form }) => print(&which.find()?, &form).await,
            Verb::Holders(Shown { which, form }) => {
                let target = which.find()?;
                let held = holders::live(&target).await?;
                if held.is_empty() {
                    say(format!("the mutex {} is free", target.found.name));
                }
                holders::show(form.output, &held)
            }
            Verb::Waiters(Shown { which, form }) => {
                count::show_waiters(&form, &which.find()?).await
            }
            Verb::Revoke(Revoke { which, how }) => {
                revoke::perform(which.find()?.found, None, how).await
            }
            Verb::Verify(which) => verify(&which.find()?).await,
            Verb::Wait(arguments) => wait_until(arguments).await,
        }
    })
}

impl Target {
    fn find(&self) -> Result<LockOnBroker, Failure> {
        Ok(LockOnBroker::new(FoundLock::on(&self.broker, &self.name, Protocol::TrueMutex)?))
    }
}

#[derive(Serialize)]
struct Counted<'a> {
    name: &'a str,
    held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    waiting: u32,
}

/// Prints the state of the mutex in one row.
async fn print(target: &LockOnBroker, form: &Form) -> Result<(), Failure> {
    let name = &target.found.name;
    let seen = target.look().await?;
    let holder = live_of(target, &seen).await?.pop();
    let waiting = target.broker.waiting(name).await.map_err(|error| failed(&error))?;
    let counted = Counted {
        name: name.as_str(),
        held: holder.is_some(),
        holder: holder.as_ref().and_then(who),
        waiting: waiting.unwrap_or(0),
    };
    let columns = [("NAME", false), ("HELD", false), ("HOLDER", false), ("WAITING", false)];
    let row = vec![
        counted.name.to_owned(),
        if counted.held { "yes" } else { "no" }.to_owned(),
        or_dash(counted.holder.as_deref()),
        counted.waiting.to_string(),
    ];
    output::print(form.output, &counted, &columns, &[row], "NAME")
}

async fn verify(target: &LockOnBroker) -> Result<(), Failure> {
    let name = &target.found.name;
    let seen = match target.broker.observe(name, 0, 0).await {
        Ok(seen) => seen,
        Err(error @ BrokerError::IncompatibleQueue { .. }) => {
            return Err(Failure::new(WRONG, error.to_string()));
        }
        Err(error) => return Err(failed(&error)),
    };
    say(match live_of(target, &seen).await?.first() {
        None => format!("{name} is free"),
        Some(holder) => format!("{name} is held{}", by(holder)),
    });
    Ok(())
}

async fn wait_until(arguments: Wait) -> Result<(), Failure> {
    let target = arguments.which.find()?;
    let name = &target.found.name;
    let look = async || Ok((name.to_string(), target.look().await?.held() > 0));
    wait::until(look, arguments.until == Until::Taken, arguments.timeout).await?;
    if arguments.until == Until::Taken
        && let Some(holder) = holders::live(&target).await?.first()
    {
        say(format!("{name} is held{}", by(holder)));
    }
    Ok(())
}

/// Names the holder, if it is known: ` by …`.
fn by(holder: &Holder) -> String {
    who(holder).map(|who| format!(" by {who}")).unwrap_or_default()
}

/// Returns the holder's identity, or its connection.
fn who(holder: &Holder) -> Option<String> {
    holder.identity.clone().or_else(|| holder.connection.clone())
}
