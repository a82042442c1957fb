//! The options of a recorded run, so that it can be repeated. See `replay` for the repetition.

use serde::{Deserialize, Serialize};

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

/// Probabilities of faults, in percent, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Probability that a process is killed in a cycle, while it acquires or while it holds.
    pub kill: u32,
    /// Probability that the connections of a process are cut in a cycle: before or after a
    /// method of an operation, or while it holds.
    pub cut: u32,
    /// Probability that the requests of a process are delayed in a cycle, so that requests of
    /// other processes pass between them.
    pub slow: u32,
    /// Probability that a holder acquires again in a cycle. A driver must refuse the request.
    #[serde(default)]
    pub again: u32,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self { kill: 0, cut: 0, slow: 0, again: 0 };
    /// Second acquires of holders, which are no faults of the environment.
    pub const AGAIN: Self = Self { again: 10, ..Self::NONE };
    /// Faults that leave most cycles undisturbed.
    pub const SOME: Self = Self { kill: 5, cut: 10, slow: 5, ..Self::AGAIN };

    /// Returns the probability of each kind of fault, with its name.
    pub fn kinds(&mut self) -> [(&'static str, &mut u32); 4] {
        let Self { kill, cut, slow, again } = self;
        [("kill", kill), ("cut", cut), ("slow", slow), ("again", again)]
    }
}

/// Names of the environment variables in which the implementation describes a grant to the
/// command that it runs. All are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[allow(clippy::doc_markdown, reason = "the text of --help is not Markdown")]
pub struct Variables {
    /// With --exec: environment variable that contains the slot number, for example LOCK_SLOT
    #[arg(long, value_name = "NAME")]
    pub slot_env: Option<String>,

    /// With --exec: environment variable that contains the fencing token, for example LOCK_TOKEN
    #[arg(long, value_name = "NAME")]
    pub fence_env: Option<String>,

    /// With --exec: environment variable that contains the id of the token in protocol Token,
    /// for example LOCK_TOKEN_ID
    #[arg(long, value_name = "NAME")]
    pub token_env: Option<String>,
}

impl Variables {
    /// Returns the options as command line arguments.
    pub fn options(&self) -> Vec<String> {
        let named = [
            ("--slot-env", &self.slot_env),
            ("--fence-env", &self.fence_env),
            ("--token-env", &self.token_env),
        ];
        let given = named.into_iter().filter_map(|(option, name)| Some((option, name.clone()?)));
        given.flat_map(|(option, name)| [option.to_owned(), name]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_only_the_given_variables() {
        let variables = Variables { fence_env: Some("T".to_owned()), ..Variables::default() };
        assert_eq!(variables.options(), ["--fence-env", "T"]);
    }
}
