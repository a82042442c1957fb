//! The options of an exploration. See `lab` and `faults` for their use.

use std::path::PathBuf;

use url::Url;

use crate::history::Rules;

/// The change of the number of slots while the clients acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Resizes {
    /// No change.
    No,
    /// The administrator removes the last slot.
    Shrink,
    /// The administrator removes the last slot and creates it again.
    ShrinkAndRegrow,
}

/// The faults of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum InjectedFaults {
    /// No faults.
    None,
    /// Each execution is repeated with one fault at each point: a connection is cut before or
    /// after a request, or while its process holds.
    One,
}

/// The options of an exploration.
#[derive(Clone, Debug)]
pub struct StepsOptions {
    /// Command that starts the driver.
    pub driver: String,
    /// Driver that resizes the lock if the implementation does not support resize.
    pub administrator: String,
    /// URL of the broker.
    pub url: Url,
    /// The protocol of the implementation.
    pub rules: Rules,
    /// Number of clients.
    pub actors: u32,
    /// Number of slots.
    pub slots: u32,
    /// Whether each client releases the slot that it was granted.
    pub release: bool,
    /// The change of the number of slots while the clients acquire.
    pub resizes: Resizes,
    /// Maximum number of executions.
    pub limit: u64,
    /// Whether equivalent executions are skipped.
    pub sleep_sets: bool,
    /// The faults.
    pub faults: InjectedFaults,
    /// Maximum number of executions with a fault. More are drawn at random.
    pub sample: Option<u64>,
    /// Seed of random schedules, and of the faults that are drawn.
    pub seed: u64,
    /// Path of this program.
    pub program: PathBuf,
}
