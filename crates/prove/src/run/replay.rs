//! Repeats a recorded run with the implementation, the seed and the options in its header. The
//! processes run concurrently, so the same seed leads to the same operations and faults, but not
//! to the same interleaving. See `run` for the original run.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::{Faults, RunOptions, Way};
use crate::check::verdict::{Property, Verdict};
use crate::driver::witness::Variables;
use crate::history::{Header, Rules};

/// The options of a run, except the broker's URL and the options in other fields of the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    /// The variables in which the command describes the grant. `None` if the implementation is a
    /// driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Variables>,
    /// Driver of a second implementation, which every other client process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_driver: Option<String>,
    /// Driver that resizes the lock if the implementation does not support resize.
    pub administrator: String,
    /// Duration of the workload, in milliseconds.
    pub duration_ms: u64,
    /// Number of client processes.
    pub clients: u32,
    /// Maximum number of slots.
    pub slots: u32,
    /// Probabilities of faults.
    pub faults: Faults,
    /// Maximum time between two resizes, in milliseconds.
    pub resize_within_ms: u64,
}

/// Error that prevents a recorded run from being repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The run was not recorded by `run`.
    #[error(
        "the history does not contain the options of the run. Only histories that `run` wrote can be replayed"
    )]
    NotPlayed,
    /// The run was recorded with a broker, but no URL is given.
    #[error("the history was recorded with a broker, but no URL is given. Set --url or AMQP_URL")]
    NoUrl,
}

impl Played {
    /// Creates the record of these options.
    pub fn new(options: &RunOptions) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            exec: match &options.way {
                Way::Driver(_) => None,
                Way::Exec(_, variables) => Some(variables.clone()),
            },
            second_driver: options.second_driver.clone(),
            administrator: options.administrator.clone(),
            duration_ms: millis(options.duration),
            clients: options.clients,
            slots: options.slots,
            faults: options.faults,
            resize_within_ms: millis(options.resize_within),
        }
    }
}

impl RunOptions {
    /// Returns the options that repeat the run with this header, on a new lock.
    ///
    /// # Errors
    ///
    /// [`ReplayError`] if the run cannot be repeated.
    pub fn again(header: &Header, url: Option<Url>, program: PathBuf) -> Result<Self, ReplayError> {
        let played = header.played.clone().ok_or(ReplayError::NotPlayed)?;
        let url = url.filter(|_| header.protocol != Rules::None);
        if url.is_none() && header.protocol != Rules::None {
            return Err(ReplayError::NoUrl);
        }
        let implementation = header.implementation.clone();
        Ok(Self {
            way: match played.exec {
                None => Way::Driver(implementation),
                Some(variables) => Way::Exec(implementation, variables),
            },
            second_driver: played.second_driver,
            administrator: played.administrator,
            url,
            rules: header.protocol,
            lock: format!("prove.run-{:016x}", rand::random::<u64>()),
            seed: header.seed,
            duration: Duration::from_millis(played.duration_ms),
            clients: played.clients,
            slots: played.slots,
            faults: played.faults,
            resize_within: Duration::from_millis(played.resize_within_ms),
            program,
        })
    }
}

/// Returns the properties that the recorded run violates. The flag of each shows whether the
/// other run violates it with the same cause.
pub fn compare(recorded: &Verdict, again: &Verdict) -> Vec<(Property, bool)> {
    let found = |verdict: &Verdict| -> BTreeSet<_> {
        verdict.violations.iter().map(|one| (one.property, one.cause)).collect()
    };
    let again = found(again);
    let mut compared: Vec<(Property, bool)> = Vec::new();
    for (property, cause) in found(recorded) {
        let same = again.contains(&(property, cause));
        match compared.last_mut() {
            Some((before, found)) if *before == property => *found |= same,
            _ => compared.push((property, same)),
        }
    }
    compared
}

#[cfg(test)]
mod tests;
