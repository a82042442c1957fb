//! Formats the cost of an implementation as text. See `report` for the data.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

use super::count::Counts;
use super::operation::Operation;
use super::report::{CostReport, MinuteCost, OperationCost, Role};

/// Formats a cost as text.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a CostReport);

const HEAD: [&str; 10] = [
    "operation",
    "n",
    "methods",
    "publishes",
    "bytes",
    "channels",
    "connections",
    "round trips",
    "ms",
    "least",
];

const NOTES: &str = "n: number of measurements, over all delays
methods, bytes: client / broker, including the traffic after the answer, without heartbeats
channels, connections: +opened -closed×reply code
round trips: until the answer, without the TCP handshake; ms: without added delay
least: methods of the client in round trips, if it follows docs/protocols and pipelines its requests
";

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report) = self;
        let seconds = millis(report.heartbeat_ms) / 1_000.0;
        let delays: Vec<String> = report.delays_ms.iter().map(|delay| short(*delay)).collect();
        writeln!(
            f,
            "{}\n{}, protocol {:?}, heartbeat {} s, {} slots; added each way: {} ms\n",
            report.implementation,
            report.broker,
            report.protocol,
            short(seconds),
            report.slots,
            delays.join(", ")
        )?;
        for (first, title) in [(false, "connected"), (true, "first operation")] {
            let mut rows = vec![HEAD.map(str::to_owned)];
            title.clone_into(&mut rows[0][0]);
            rows.extend(Operation::ALL.into_iter().filter_map(|operation| {
                let cost = |one: &&OperationCost| (one.operation, one.first) == (operation, first);
                match report.operations.iter().find(cost) {
                    Some(cost) => Some(row(cost, report.taken)),
                    None if first => None,
                    None => Some(missing(operation, report)),
                }
            }));
            writeln!(f, "{}", aligned(&rows))?;
        }
        writeln!(f, "{}", minutes(&report.minutes, report.heartbeat_ms))?;
        let takeover = report.takeover_ms.map_or_else(|| "-".to_owned(), short);
        writeln!(f, "kill -9 of the holder until the waiter holds its slot: {takeover} ms\n")?;
        f.write_str(NOTES)?;
        f.write_str(&reasons(report))?;
        report.troubles.iter().try_for_each(|trouble| writeln!(f, "warning: {trouble}"))
    }
}

fn name(operation: Operation, taken: u32) -> String {
    match operation {
        Operation::AcquireFree => "acquire, all free".to_owned(),
        Operation::AcquireTaken => format!("acquire, {taken} taken"),
        Operation::AcquireFull => "acquire, full".to_owned(),
        Operation::LostRace => "acquire, lost race".to_owned(),
        Operation::Verify => "verify".to_owned(),
        Operation::Release => "release".to_owned(),
        Operation::HandOver => "hand-over".to_owned(),
        Operation::Grow => "resize +1".to_owned(),
        Operation::Shrink => "resize -1".to_owned(),
    }
}

fn row(cost: &OperationCost, taken: u32) -> [String; 10] {
    let counts = &cost.counts;
    let mut methods = format!("{}/{}", counts.client.methods, counts.broker.methods);
    if cost.most_methods > counts.client.methods {
        let _ = write!(methods, " (max {})", cost.most_methods);
    }
    [
        name(cost.operation, taken),
        cost.samples.to_string(),
        methods,
        counts.publishes.to_string(),
        format!("{}/{}", counts.client.bytes, counts.broker.bytes),
        changes(counts.channels_opened, &counts.channels_closed),
        changes(counts.connections_opened, &counts.connections_closed),
        cost.round_trips.map_or_else(|| "-".to_owned(), short),
        cost.time_ms.map_or_else(|| "-".to_owned(), short),
        cost.least.as_ref().map_or_else(String::new, |least| {
            match (least.methods, least.round_trips) {
                (Some(methods), Some(trips)) => {
                    let remembered =
                        least.remembered.map_or_else(String::new, |(methods, trips)| {
                            format!(", remembered {methods} in {trips}")
                        });
                    format!("{methods} in {trips}{remembered}")
                }
                _ => format!("{} channel, 0 connections", least.channels_closed),
            }
        }),
    ]
}

/// Returns the row of an operation without samples.
fn missing(operation: Operation, report: &CostReport) -> [String; 10] {
    let mut row = [const { String::new() }; 10];
    let why = match operation {
        Operation::LostRace if report.not_offered.contains(&operation) => "does not occur",
        _ if report.not_offered.contains(&operation) => "not supported",
        _ => "not measured",
    };
    (row[0], row[2]) = (name(operation, report.taken), why.to_owned());
    row
}

/// Returns for example `+1 -2×404`, or `0`.
fn changes(opened: u64, closed: &BTreeMap<String, u64>) -> String {
    let opened = (opened > 0).then(|| format!("+{opened}"));
    let closed = closed.iter().map(|(code, count)| format!("-{count}×{code}"));
    let all: Vec<String> = opened.into_iter().chain(closed).collect();
    if all.is_empty() { "0".to_owned() } else { all.join(" ") }
}

fn minutes(minutes: &[MinuteCost], heartbeat_ms: u64) -> String {
    let head = [
        "per minute",
        "methods",
        "publishes",
        "bytes",
        "heartbeats",
        "observed",
        "counted",
        "least",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for minute in minutes {
        let role = match minute.role {
            Role::Holder => "held slot",
            Role::Waiter => "waiter",
        };
        let least = minute.least.as_ref().map_or_else(String::new, |(least, _)| short(*least));
        let Some(per) = &minute.per_minute else {
            let mut row = [const { String::new() }; 8];
            (row[0], row[1]) = (role.to_owned(), "not measured".to_owned());
            rows.push(row);
            continue;
        };
        let both = |client: f64, broker: f64| format!("{}/{}", short(client), short(broker));
        let heartbeat = millis(heartbeat_ms);
        let observed = millis(minute.observed_ms);
        let intervals = if heartbeat_ms > 0 {
            format!(", {} intervals", short(observed / heartbeat))
        } else {
            ", without heartbeats".to_owned()
        };
        rows.push([
            role.to_owned(),
            both(per.client.methods, per.broker.methods),
            short(per.publishes),
            both(per.client.bytes, per.broker.bytes),
            both(per.client.heartbeats, per.broker.heartbeats),
            format!("{} s{intervals}", short(observed / 1_000.0)),
            counted(&per.counted),
            least,
        ]);
    }
    aligned(&rows)
}

fn counted(counts: &Counts) -> String {
    format!("{}/{} methods", counts.client.methods, counts.broker.methods)
}

/// Returns the reasons for the minimum costs.
fn reasons(report: &CostReport) -> String {
    let operations = report.operations.iter().filter(|cost| !cost.first).filter_map(|cost| {
        let least = cost.least.as_ref()?;
        Some(format!("  {}: {}\n", name(cost.operation, report.taken), least.reason))
    });
    let minutes = report.minutes.iter().filter_map(|minute| {
        let role = if minute.role == Role::Holder { "held slot" } else { "waiter" };
        let (_, reason) = minute.least.as_ref()?;
        Some(format!("  {role}: {reason}\n"))
    });
    operations.chain(minutes).collect()
}

/// Returns the rows as lines of aligned columns.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Formats a number with one decimal, or as an integer if it is one.
fn short(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// Converts a number of milliseconds. The result is exact for the durations used here.
fn millis(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cost::least::least;
    use crate::history::Rules;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [["a", "b×"], ["long", "c"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a     b×\nlong  c\n");
    }

    #[test]
    fn changes_name_the_codes() {
        let closed = BTreeMap::from([("404".to_owned(), 2), ("200".to_owned(), 1)]);
        assert_eq!(changes(1, &closed), "+1 -1×200 -2×404");
        assert_eq!(changes(0, &BTreeMap::new()), "0");
    }

    /// A report of one operation and of a waiter that stopped.
    fn report() -> CostReport {
        let mut counts = Counts { publishes: 1, ..Counts::default() };
        (counts.client.methods, counts.broker.bytes) = (3, 99);
        let cost = OperationCost {
            operation: Operation::AcquireTaken,
            first: false,
            samples: 15,
            counts,
            fewest_methods: 4,
            most_methods: 7,
            time_ms: Some(1.25),
            round_trips: Some(2.0),
            least: least(Rules::ExclusiveQueue, Operation::AcquireTaken, 2, false),
        };
        CostReport {
            implementation: "driver".to_owned(),
            broker: "RabbitMQ 3.10.8".to_owned(),
            protocol: Rules::ExclusiveQueue,
            heartbeat_ms: 10_000,
            slots: 3,
            taken: 2,
            delays_ms: vec![0.0, 5.0],
            operations: vec![cost],
            not_offered: BTreeSet::from([Operation::Verify]),
            minutes: vec![MinuteCost {
                role: Role::Waiter,
                observed_ms: 12_000,
                per_minute: None,
                least: None,
            }],
            takeover_ms: Some(9.5),
            troubles: vec!["it was slow".to_owned()],
        }
    }

    #[test]
    fn the_text_has_a_row_for_each_operation() {
        let text = Table(&report()).to_string();
        let has = |start: &str, parts: &[&str]| {
            let line = text.lines().find(|line| line.starts_with(start));
            line.is_some_and(|line| parts.iter().all(|part| line.contains(part)))
        };
        let numbers = ["15", "3/0 (max 7)", "0/99", "6 in 2, remembered 3 in 1"];
        assert!(has("acquire, 2 taken", &numbers), "{text}");
        assert!(has("verify", &["not supported"]) && has("release", &["not measured"]), "{text}");
        assert!(has("kill -9", &["9.5 ms"]), "{text}");
        assert!(has("waiter", &["not measured"]) && has("warning", &["it was slow"]), "{text}");
    }

    #[test]
    fn a_report_survives_a_json_round_trip() {
        let json = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<CostReport>(&json).unwrap(), report());
    }
}
