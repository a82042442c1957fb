//! Summarizes the samples of each operation, and compares them with the minimum cost. See
//! `table` for the text.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::background::Minutes;
use super::count::Counts;
use super::least::{Least, least, least_held, least_waiting};
use super::median::median;
use super::minute::PerMinute;
use super::operation::Operation;
use super::options::{CostOptions, DELAYS};
use super::sample::Sample;
use crate::history::Rules;

/// The cost of an implementation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    /// Command that starts its driver.
    pub implementation: String,
    /// Product and version of the broker.
    pub broker: String,
    /// Its protocol.
    pub protocol: Rules,
    /// The longest heartbeat interval that a holder negotiated, in milliseconds. 0 without
    /// heartbeats.
    pub heartbeat_ms: u64,
    /// Number of slots of the lock.
    pub slots: u32,
    /// Number of slots that are held in [`Operation::AcquireTaken`].
    pub taken: u32,
    /// Delays that the proxy added in each direction, in milliseconds.
    pub delays_ms: Vec<f64>,
    /// The operations: those of connected processes, and the first operation of a new process.
    pub operations: Vec<OperationCost>,
    /// Operations that the implementation does not support, or that never occur in it.
    pub not_offered: BTreeSet<Operation>,
    /// The traffic of an idle holder and an idle waiter.
    pub minutes: Vec<MinuteCost>,
    /// Time from `kill -9` of a holder until a waiter held its slot, in milliseconds.
    #[serde(default)]
    pub takeover_ms: Option<f64>,
    /// Warnings, each text once.
    pub troubles: Vec<String>,
}

/// The cost of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationCost {
    /// The operation.
    pub operation: Operation,
    /// Whether it is the first operation of a new process.
    pub first: bool,
    /// Number of samples, over all delays.
    pub samples: usize,
    /// The median of each number. Includes the traffic that follows the answer.
    pub counts: Counts,
    /// The lowest number of methods that processes sent in a sample. On a busy machine, a
    /// sample may also contain requests that a holder sends from time to time.
    pub fewest_methods: u64,
    /// The highest number of methods that processes sent in a sample.
    pub most_methods: u64,
    /// The median of the time without a delay, in milliseconds.
    pub time_ms: Option<f64>,
    /// Round trips until the answer: the longest chain of requests and answers, at the longest
    /// delay. Of all samples, the one with the shortest chain counts: a busy machine may send
    /// requests that belong together so far apart that the second seems to depend on the answer
    /// to the first. `None` without a sample at that delay.
    pub round_trips: Option<f64>,
    /// The minimum cost.
    pub least: Option<Least>,
}

/// The traffic of an idle process per minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MinuteCost {
    /// Whether the process holds a slot or waits for one.
    pub role: Role,
    /// The observed time, in milliseconds. The traffic is scaled to a minute.
    pub observed_ms: u64,
    /// The traffic. `None` if the process stopped holding or waiting too early.
    pub per_minute: Option<PerMinute>,
    /// The minimum number of methods that it must send per minute, and the reason.
    pub least: Option<(f64, String)>,
}

/// The role of an idle process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It holds a slot.
    Holder,
    /// It waits for a slot.
    Waiter,
}

impl CostReport {
    /// Summarizes the samples.
    pub fn new(options: &CostOptions, samples: &[Sample]) -> Self {
        let kinds = [false, true]
            .into_iter()
            .flat_map(|first| Operation::ALL.into_iter().map(move |operation| (operation, first)));
        let operations = kinds.filter_map(|(operation, first)| {
            let those =
                samples.iter().filter(|one| (one.operation, one.first) == (operation, first));
            let those: Vec<&Sample> = those.collect();
            let mut cost = OperationCost::of(&those)?;
            cost.least = least(options.rules, operation, options.taken, first);
            Some(cost)
        });
        Self {
            implementation: options.driver.clone(),
            broker: String::new(),
            protocol: options.rules,
            heartbeat_ms: 0,
            slots: options.taken + 1,
            taken: options.taken,
            delays_ms: DELAYS.into_iter().map(milliseconds).collect(),
            operations: operations.collect(),
            not_offered: BTreeSet::new(),
            minutes: Vec::new(),
            takeover_ms: None,
            troubles: Vec::new(),
        }
    }

    /// Adds the traffic of idle processes.
    pub(super) fn add_minutes(&mut self, options: &CostOptions, minutes: Minutes) {
        let Minutes { observed, heartbeat, holder, waiter, takeover } = minutes;
        self.takeover_ms = takeover.map(milliseconds);
        let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let cost = |role, per_minute, least| MinuteCost {
            role,
            observed_ms: whole(observed),
            per_minute,
            least,
        };
        self.heartbeat_ms = whole(heartbeat);
        self.minutes = vec![
            cost(Role::Holder, holder, least_held(options.rules, heartbeat)),
            cost(Role::Waiter, waiter, least_waiting(options.rules)),
        ];
    }
}

impl OperationCost {
    /// Summarizes the samples of one operation. Returns `None` if there are none.
    fn of(samples: &[&Sample]) -> Option<Self> {
        let first = samples.first()?;
        let counts: Vec<Counts> = samples.iter().map(|one| one.counts.clone()).collect();
        let with = |delay: Duration, value: fn(&Sample) -> f64| {
            let those = samples.iter().filter(|one| one.delay == delay);
            median(&those.map(|one| value(one)).collect::<Vec<f64>>())
        };
        let longest = DELAYS.into_iter().max().unwrap_or_default();
        let at_longest = samples.iter().filter(|one| one.delay == longest);
        let round_trips = at_longest.map(|one| one.round_trips).min_by(f64::total_cmp);
        Some(Self {
            operation: first.operation,
            first: first.first,
            samples: samples.len(),
            fewest_methods: counts.iter().map(|one| one.client.methods).min().unwrap_or_default(),
            most_methods: counts.iter().map(|one| one.client.methods).max().unwrap_or_default(),
            counts: Counts::median(&counts),
            time_ms: with(Duration::ZERO, |one| milliseconds(one.time)),
            round_trips,
            least: None,
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample that takes `trips` round trips after 3 ms of the client's own work.
    fn sample(delay: Duration, trips: u32, methods: u64) -> Sample {
        let mut counts = Counts::default();
        counts.client.methods = methods;
        let time = Duration::from_millis(3) + 2 * trips * delay;
        let (operation, first, round_trips) = (Operation::Verify, true, f64::from(trips));
        Sample { operation, first, delay, time, round_trips, counts }
    }

    fn cost(samples: &[Sample]) -> OperationCost {
        OperationCost::of(&samples.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn an_outlier_changes_neither_the_time_nor_the_counts() {
        let mut samples: Vec<Sample> =
            DELAYS.into_iter().flat_map(|delay| vec![sample(delay, 2, 4); 3]).collect();
        samples[0].time = Duration::from_secs(9);
        samples[5].counts.client.methods = 6;
        let cost = cost(&samples);
        assert_eq!((cost.samples, cost.counts.client.methods, cost.most_methods), (6, 4, 6));
        assert_eq!(cost.fewest_methods, 4);
        assert!((cost.time_ms.unwrap() - 3.0).abs() < 1e-6, "{cost:?}");
    }

    #[test]
    fn requests_that_a_busy_machine_sends_apart_add_no_round_trip() {
        let mut samples: Vec<Sample> =
            DELAYS.into_iter().flat_map(|delay| vec![sample(delay, 1, 2); 2]).collect();
        samples[3].round_trips = 2.0;
        let round_trips = cost(&samples).round_trips.unwrap();
        assert!((round_trips - 1.0).abs() < 1e-9, "{round_trips}");
    }

    #[test]
    fn without_a_delay_no_round_trips_are_known() {
        let samples = vec![sample(Duration::ZERO, 2, 4); 3];
        assert_eq!(cost(&samples).round_trips, None);
        assert_eq!(OperationCost::of(&[]), None);
    }
}
