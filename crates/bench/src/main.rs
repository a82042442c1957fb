//! Measures the cost of Lockkeeper relative to the bare operations of the servers, and
//! prints one table. Fails if a goal is missed. Requires fresh servers, which `dev/bench`
//! starts.

mod bare;
mod client;
mod costs;
mod decades;
mod environment;
mod growth;
mod neighbour;
mod objects;
mod observe;
mod peers;
mod protocols;
mod queue;
mod ready;
mod resize;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::environment::Environment;
use crate::table::Table;

/// Every error ends the run.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Number of objects written concurrently, by the bare run and by the process that
/// creates the objects for the operator. Enough to keep two cores of servers busy.
const CONCURRENCY: usize = 32;

/// Sizes; goals are judged only at the default ones.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Options {
    /// Sizes to resize a semaphore to
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    slots: Vec<u32>,
    /// Locks to observe
    #[arg(long, default_value_t = 1000)]
    locks: usize,
    /// Objects to create
    #[arg(long, default_value_t = 1000)]
    objects: usize,
    /// Rounds of a resize; three times as many of shorter measurements
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rounds of objects
    #[arg(long, default_value_t = 3)]
    object_rounds: usize,
    /// Numbers of slots and of objects that the growth is measured at
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 10000])]
    sizes: Vec<u32>,
    /// Seconds until the operator's memory is read
    #[arg(long, value_parser = |text: &str| text.parse().map(Duration::from_secs))]
    rest: Option<Duration>,
    /// Measure this alone
    #[arg(long, value_parser = ["resize", "observe", "client", "protocols", "costs", "queue", "objects", "growth", "peers"])]
    only: Option<String>,
    /// The program that runs the operator: the static one, as in the image
    #[arg(long, value_name = "PROGRAM")]
    operator: Option<PathBuf>,
    /// Folder of the pictures
    #[arg(long, default_value = "target/bench")]
    plots: PathBuf,
    /// A checkout of amqp-locks-python, to compare with
    #[arg(long, value_name = "DIRECTORY")]
    amqp_locks_python: Option<PathBuf>,
    /// A checkout of RabbitMQ's messaging topology operator, to compare with
    #[arg(long, value_name = "DIRECTORY")]
    neighbour: Option<PathBuf>,
    /// Acquire and release a lock on request
    #[arg(long, hide = true)]
    locker: Option<String>,
    /// Be the other process of a measurement
    #[arg(long, hide = true, requires = "prefix")]
    peer: Option<String>,
    /// The other process's keys
    #[arg(long, hide = true)]
    prefix: Option<String>,
    /// Given by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let (Some(peer), Some(prefix)) = (&options.peer, &options.prefix) {
        queue::run_peer(peer, prefix).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(kind) = &options.locker {
        peers::serve(kind).await?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before all measurements, because the plots come after them.
    std::fs::create_dir_all(&options.plots)?;
    let environment = Environment::new(options.operator.as_deref()).await;
    let cores = std::thread::available_parallelism()?;
    let servers = environment.versions().await?;
    let build = if cfg!(debug_assertions) { "a debug build, which says little" } else { "release" };
    println!("{servers}; {cores} cores; {build}; {CONCURRENCY} writers\n");

    let mut table = Table::default();
    let wanted = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    if wanted("resize") {
        resize::run(&environment, &options, &mut table).await?;
    }
    if wanted("observe") {
        observe::run(&environment, &options, &mut table).await?;
    }
    if wanted("client") {
        client::run(&environment, &options, &mut table).await?;
    }
    if wanted("protocols") {
        protocols::run(&options, &mut table).await?;
    }
    if wanted("costs") {
        costs::run(&environment).await?;
    }
    if wanted("queue") {
        queue::run(&environment, &options, &mut table).await?;
    }
    if wanted("objects") {
        objects::run(&environment, &options, &mut table).await?;
    }
    if wanted("growth") {
        growth::run(&environment, &options, &mut table).await?;
    }
    if wanted("peers") {
        peers::run(&environment, &options).await?;
    }
    environment.end().await;

    println!();
    let missed = table.print();
    if missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("\ngoals missed: {}", missed.iter().map(|m| m.trim()).collect::<Vec<_>>().join("; "));
    Ok(ExitCode::FAILURE)
}
