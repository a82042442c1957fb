//! The goals, and the table that says how near each measurement comes to them.
//! A figure is a ratio to the bare server operation of the same run, because
//! that is what stays the same from one machine to the next.

use std::time::Duration;

/// Growing, as speed: a resize looks before and after, takes the admin mutex
/// and declares the first slot alone. Twenty per cent for all of that.
pub const GROW: Goal = Goal::AtLeast(0.8);

/// Shrinking, as speed: each delete is confirmed before the next one is sent, so
/// this is bare deletes one at a time plus the same surroundings.
pub const SHRINK: Goal = Goal::AtLeast(0.8);

/// Observing, as time: a look should be the probes and nothing else.
pub const OBSERVE: Goal = Goal::AtMost(1.2);

/// Many objects, as time: the writes that they need, and hardly more.
pub const OBJECTS: Goal = Goal::AtMost(1.3);

/// How long RabbitMQ's messaging topology operator takes from create to Ready
/// for 1,000 `Queue` objects: measured once, by hand, on the machine class of
/// this project's CI (2 cores) with the same Kubernetes servers.
pub const NEIGHBOUR: Duration = Duration::from_millis(13_100);

/// Many objects, as a part of the neighbour's time.
pub const OF_THE_NEIGHBOUR: Goal = Goal::AtMost(0.5);

/// Resident memory of an operator at rest with 1,000 objects, in MiB: what an
/// add-on may cost that runs on every cluster.
pub const MEMORY_MIB: Goal = Goal::AtMost(32.0);

/// Acquiring and releasing, as speed: the declare and the delete of one exclusive
/// queue are what the broker takes its time for; the rest is sent along with them.
pub const ACQUIRE: Goal = Goal::AtLeast(0.85);

/// Verifying, as speed: it is the two passive declares that it is compared to.
pub const VERIFY: Goal = Goal::AtLeast(0.9);

/// From one holder to the next who waits, in milliseconds at the median: a delete, a
/// wake-up, a declare.
pub const HAND_OVER_MS: Goal = Goal::AtMost(5.0);

/// Acquiring and releasing by an exclusive consumer, as speed beside the same three
/// methods.
pub const CONSUMER: Goal = Goal::AtLeast(0.8);

/// The same, as speed beside `ExclusiveQueue`, whose queue the broker has to make.
pub const OF_THE_QUEUE: Goal = Goal::AtLeast(7.0);

/// Taking a token and giving it back, as speed beside a bare get and reject.
pub const TOKEN: Goal = Goal::AtLeast(0.8);

/// From one holder to the next who waits, beside a message to a waiting consumer.
pub const OF_THE_PUSH: Goal = Goal::AtMost(2.0);

/// Putting one element, as speed beside the bare LPUSH: a script that keeps all of
/// the protocol's steps runs in the time that the network leaves.
pub const PUT: Goal = Goal::AtLeast(0.7);

/// Putting one element, as speed beside the same steps as 13 commands.
pub const OF_THE_SEQUENCE: Goal = Goal::AtLeast(5.0);

/// Batches, as speed beside one by one.
pub const BATCH: Goal = Goal::AtLeast(10.0);

/// Two processes that take turns through a bound of 1, as speed beside two lists.
pub const PING_PONG: Goal = Goal::AtLeast(0.5);

/// What a figure should be.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
}

impl Goal {
    fn is_met_by(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {least}"),
            Self::AtMost(most) => format!("≤ {most}"),
        }
    }
}

/// One pair of measurements: the bare operation and ours, one after the other.
#[derive(Clone, Copy)]
pub struct Pair {
    /// How long the bare operation took.
    pub bare: Duration,
    /// How long ours took.
    pub ours: Duration,
}

/// The rows so far.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
    missed: Vec<String>,
}

impl Table {
    /// Adds how many times the bare operation's *speed* ours has.
    pub fn speed(&mut self, what: &str, pairs: &[Pair], goal: Option<Goal>) {
        self.pairs(what, pairs, goal, "speed", |pair| {
            pair.bare.as_secs_f64() / pair.ours.as_secs_f64()
        });
    }

    /// Adds how many times the bare operation's *time* ours takes.
    pub fn time(&mut self, what: &str, pairs: &[Pair], goal: Option<Goal>) {
        self.pairs(what, pairs, goal, "time", |pair| {
            pair.ours.as_secs_f64() / pair.bare.as_secs_f64()
        });
    }

    fn pairs(
        &mut self,
        what: &str,
        pairs: &[Pair],
        goal: Option<Goal>,
        unit: &str,
        ratio: impl Fn(&Pair) -> f64,
    ) {
        if pairs.is_empty() {
            return;
        }
        let seconds =
            |of: fn(&Pair) -> Duration| median(pairs.iter().map(|pair| of(pair).as_secs_f64()));
        let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let figure = median(ratios.iter().copied());
        let [bare, ours] = [seconds(|pair| pair.bare), seconds(|pair| pair.ours)].map(duration);
        let text = format!("{figure:.2} × {unit} ({least:.2}–{most:.2})");
        self.row(what, bare, ours, text, figure, goal);
    }

    /// Adds a figure that has no bare counterpart.
    pub fn figure(&mut self, what: &str, ours: String, figure: f64, goal: Option<Goal>) {
        self.row(what, "–".to_owned(), ours, format!("{figure:.2}"), figure, goal);
    }

    fn row(
        &mut self,
        what: &str,
        bare: String,
        ours: String,
        ratio: String,
        figure: f64,
        goal: Option<Goal>,
    ) {
        let verdict = match goal {
            None => "",
            Some(goal) if goal.is_met_by(figure) => "met",
            Some(_) => "MISSED",
        };
        if verdict == "MISSED" {
            self.missed.push(what.to_owned());
        }
        let wanted = goal.map_or_else(|| "–".to_owned(), Goal::text);
        let row = [what.to_owned(), bare, ours, ratio, wanted, verdict.to_owned()];
        println!("  {}", row.join(" | "));
        self.rows.push(row);
    }

    /// Prints all rows, aligned, as Markdown. Returns what missed its goal.
    pub fn print(&self) -> &[String] {
        aligned(["", "bare", "Lockkeeper", "ratio: median (range)", "goal", ""], &self.rows);
        &self.missed
    }
}

/// Prints what was measured of each protocol on each broker.
pub fn of_protocols(rows: &[[String; 8]]) {
    let head = [
        "broker",
        "protocol",
        "acquire + release",
        "16 clients, 4 slots",
        "verify",
        "hand-over",
        "0 → 100 slots",
        "100 → 0 slots",
    ];
    aligned(head, rows);
}

/// Prints rows as Markdown, with columns of even width.
fn aligned<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String]| {
        let cells: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("| {} |", cells.join(" | "));
    };
    line(&head.map(ToOwned::to_owned));
    line(&widths.map(|width| "-".repeat(width)));
    for row in rows {
        line(row);
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}
