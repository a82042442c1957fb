//! The shares of the implementations in a run with `--second-driver`: which processes each of them ran,
//! and how many grants these got. See `text` for their presentation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history::{History, Operation, Phase, ProcessState, Verb, What};

/// The share of one implementation in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The command of the implementation.
    pub implementation: String,
    /// The processes that ran it, in ascending order.
    pub processes: Vec<u32>,
    /// Number of grants to these processes.
    pub grants: u64,
}

/// Returns the share of each implementation in the order of their first processes, or nothing
/// if there is only one. Processes that never acquired do not count, such as an administrator.
pub fn shares(history: &History) -> Vec<Share> {
    let mut grants: BTreeMap<u32, u64> = BTreeMap::new();
    let mut started: Vec<(u32, &str)> = Vec::new();
    for event in &history.events {
        match &event.what {
            What::Process { process, state: ProcessState::Started, implementation } => {
                let header = &history.header.implementation;
                started.push((*process, implementation.as_ref().unwrap_or(header)));
            }
            What::Operation(Operation { process, verb: Verb::Acquire, phase, .. }) => {
                *grants.entry(*process).or_default() += u64::from(*phase == Phase::Ok);
            }
            _ => {}
        }
    }
    let mut shares: Vec<Share> = Vec::new();
    for (process, implementation) in started {
        let Some(&granted) = grants.get(&process) else { continue };
        match shares.iter_mut().find(|share| share.implementation == implementation) {
            Some(share) => {
                share.processes.push(process);
                share.grants += granted;
            }
            None => shares.push(Share {
                implementation: implementation.to_owned(),
                processes: vec![process],
                grants: granted,
            }),
        }
    }
    if shares.len() > 1 { shares } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::Story;
    use crate::history::Rules;

    #[test]
    fn each_implementation_has_its_processes_and_their_grants() {
        let alone = Story::new(Rules::None, 1).started(1, None).started(2, Some("theirs"));
        let alone = alone.ask(1, Verb::Acquire).granted(1, 1).ask(2, Verb::Resize);
        assert_eq!(shares(&alone.history()), []);
        let both = Story::new(Rules::None, 1)
            .started(1, None)
            .started(2, Some("theirs"))
            .started(3, None)
            .ask(1, Verb::Acquire)
            .ask(2, Verb::Acquire)
            .granted(2, 1)
            .full(1)
            .ask(3, Verb::Acquire);
        let history = both.history();
        let share = |implementation: &str, processes: &[u32], grants| Share {
            implementation: implementation.to_owned(),
            processes: processes.to_vec(),
            grants,
        };
        let ours = history.header.implementation.clone();
        assert_eq!(shares(&history), [share(&ours, &[1, 3], 0), share("theirs", &[2], 1)]);
    }
}
