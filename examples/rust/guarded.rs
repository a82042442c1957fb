//! A program that uses the lock client. It acquires a slot of a lock several times, and
//! each time writes to a register that only the slot's holder may write to. It fails as
//! soon as it meets another holder there. Several processes together show that the lock
//! excludes them:
//!
//! ```sh
//! AMQP_URL=amqp://… cargo run --example guarded -- demo.deploy 100 /tmp/registers
//! ```
//!
//! A lock with another protocol than ExclusiveQueue needs a fourth argument:
//! `ExclusiveConsumer`, or `Token`.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use lockkeeper_client::{
    AcquireOptions, Client, ClientOptions, LockName, Permit, Protocol, QueueType, RabbitmqSettings,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |what: &str| arguments.next().ok_or(format!("missing argument: {what}"));
    let lock = LockName::new(argument("the lock's name")?)?;
    let times: u32 = argument("how many times")?.parse()?;
    let registers = argument("the directory of the registers")?;
    let lock = match argument("the protocol").as_deref() {
        Ok("ExclusiveQueue") | Err(_) => lock,
        Ok("ExclusiveConsumer") => lock.with_protocol(Protocol::ExclusiveConsumer),
        Ok("Token") => lock.with_protocol(Protocol::Token(QueueType::Classic)),
        Ok(other) => return Err(format!("no such protocol: {other}").into()),
    };
    let broker = std::env::var("AMQP_URL").map_err(|_| "set AMQP_URL to the broker's address")?;

    let settings = RabbitmqSettings::from_urls(&broker, None)?;
    let client = Client::new(settings, ClientOptions::default());
    let lock = client.semaphore(lock);
    let options =
        AcquireOptions::default().with_identity(format!("guarded/{}", std::process::id()));
    for _ in 0..times {
        let permit = lock.acquire(&options).await?;
        write_alone(&permit, Path::new(&registers))?;
        permit.release().await?;
    }
    client.close().await;
    Ok(())
}

/// The guarded work: fails if another holder is doing it too.
fn write_alone(permit: &Permit, registers: &Path) -> Result<(), Box<dyn Error>> {
    // In protocol Token, each token has one holder at a time.
    let slot = permit.slot().map(u64::from).or(permit.token_id()).unwrap_or_default();
    let register = registers.join(format!("slot-{slot}"));
    let met = |what: &str| format!("slot {slot}: met another holder {what}");
    File::create_new(&register)
        .map_err(|_| met("on entering"))?
        .write_all(permit.id().as_bytes())?;
    if fs::read_to_string(&register)? != permit.id() {
        return Err(met("inside").into());
    }
    if !permit.is_valid() {
        return Err(format!("slot {slot}: lost while it was used").into());
    }
    Ok(fs::remove_file(&register).map_err(|_| met("on leaving"))?)
}
