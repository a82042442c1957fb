//! Repeats a recorded run with the implementation, the seed and the options in its header. The
//! processes run concurrently, so the same seed leads to the same operations and faults, but not
//! to the same interleaving. See `run` for the original run.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::options::{RunOptions, Way};
use crate::check::verdict::{Property, Verdict};
use crate::history::{Header, Rules};

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
