//! The goals, and the table of measurements with their goals. A figure is a ratio to the
//! bare server operation of the same run, because ratios are comparable between machines.

use std::time::Duration;

/// Speed of growing. A resize observes before and after, takes the admin mutex and
/// declares the first slot alone. Together these may cost 20 %.
pub const GROW: Goal = Goal::AtLeast(0.8);

/// Speed of shrinking. Each delete is confirmed before the next one is sent, so this is
/// bare deletes one at a time plus the same overhead. The sweep before has made the broker keep
/// statistics of its probes, which it walks at each delete. On a slow machine that left 0.74.
pub const SHRINK: Goal = Goal::AtLeast(0.7);

/// Time of observing: the probes, and little else.
pub const OBSERVE: Goal = Goal::AtMost(1.2);

/// Time of observing one lock of thousands of slots. Unlike the bare probes, ours are spread over
/// many channels, because the broker keeps the names that a channel has published to. With few
/// rounds, the bare probes of 10,000 slots take 0.39 s in one run and 0.49 s in another.
pub const OBSERVE_ONE: Goal = Goal::AtMost(1.5);

/// Time for many objects: the required writes, and little more. The finalizer is a write less, and
/// the wait queue a queue more than in the bare run.
pub const OBJECTS: Goal = Goal::AtMost(1.2);

/// The same, compared with RabbitMQ's messaging topology operator and as many of its `Queue`s. It
/// makes one queue for each object, where a lock needs three with its admin mutex, and two writes
/// more to the API server.
pub const OF_THE_NEIGHBOUR: Goal = Goal::AtMost(1.0);

/// Time of the start of an operator, compared with a bare list of its objects and the probes of their
/// slots. The operator also starts a process, keeps each object, and reconciles it.
pub const START: Goal = Goal::AtMost(2.5);

/// Resident memory of an idle operator that has just created 1,000 objects, in MiB: the acceptable
/// cost of an add-on that runs on every cluster. 17 are the program's file, 10 are in use after a
/// start, and the creation leaves up to 7 more in parts that the allocator does not give back.
pub const MEMORY_MIB: Goal = Goal::AtMost(36.0);

/// Speed of acquire and release. The broker's time goes to the declare and the delete of
/// one exclusive queue; the rest is sent along with them.
pub const ACQUIRE: Goal = Goal::AtLeast(0.85);

/// The same for many clients with a free slot for each. They start without knowing the slots,
/// and lose races until each has found one of its own.
pub const CROWD: Goal = Goal::AtLeast(0.7);

/// Speed of acquire and release by more clients than there are slots, compared with the steps
/// that any such lock needs one after the other: a delete, a message, its delivery, a declare.
pub const CONTENDED: Goal = Goal::AtLeast(0.6);

/// Speed of verify, compared with its two passive declares.
pub const VERIFY: Goal = Goal::AtLeast(0.9);

/// The same for 64 holders at once. They keep both cores busy, so the time limit, the channel's
/// lock and the permit's state of each verification take time from the broker.
pub const VERIFY_ALL: Goal = Goal::AtLeast(0.75);

/// Speed of acquire and release by an exclusive consumer, compared with the same three
/// methods. The broker takes 0.24 ms for them. The permit's task, its timers and the question
/// whether clients wait take another 0.06 to 0.08 ms of the same two cores.
pub const CONSUMER: Goal = Goal::AtLeast(0.7);

/// Speed of an exclusive consumer, compared with `ExclusiveQueue`, for which the broker
/// creates a queue. The two are measured a minute apart, not in turn: 6.0 to 9.7.
pub const OF_THE_QUEUE: Goal = Goal::AtLeast(5.0);

/// Speed of acquiring and releasing a token, compared with a bare get and reject.
pub const TOKEN: Goal = Goal::AtLeast(0.8);

/// Time of a hand-over of protocol `Token` to a waiting client, as the median, compared with a
/// message to a waiting consumer. The client that receives a token asks the broker before it uses
/// it, because the delivery may be old. Of a message in 0.5 ms that makes 1.6 to 1.8 times the time,
/// and of one in 0.23 ms, on a machine that wakes up faster, 2.2 times.
pub const OF_THE_PUSH: Goal = Goal::AtMost(2.5);

/// Time of a hand-over of the other protocols, as the median, compared with its steps: a release,
/// a message to a waiting consumer, an acquire.
pub const OF_THE_STEPS: Goal = Goal::AtMost(1.6);

/// The 99th percentile of hand-overs, compared with the median: at most 4. On one slow machine,
/// RabbitMQ 3.10 stalled for more than 100 ms in one of a hundred bare steps, and so in one of a
/// hundred hand-overs. `floor` is the same figure of the bare operation in this run. Above 2.5, it
/// raises the goal by as much.
pub fn tail(floor: f64) -> Goal {
    Goal::AtMost((1.6 * floor).max(4.0))
}

/// Growth of the memory with the number of objects, compared with the growth of that number.
pub const LINEAR: Goal = Goal::AtMost(1.3);

/// Speed of putting one element, compared with the bare LPUSH. On a fast machine, a script that
/// performs all of the protocol's steps fits into the time that the network takes (0.78 to 0.92). On
/// one at half that speed it takes the server 0.045 ms more than an LPUSH (0.67).
pub const PUT: Goal = Goal::AtLeast(0.6);

/// Speed of putting one element, compared with the same steps as 13 commands.
pub const OF_THE_SEQUENCE: Goal = Goal::AtLeast(5.0);

/// Speed of batches, compared with single operations.
pub const BATCH: Goal = Goal::AtLeast(10.0);

/// Speed of two processes that alternate through a bound of 1, compared with two lists.
pub const PING_PONG: Goal = Goal::AtLeast(0.5);

/// The goal of a figure.
#[derive(Clone, Copy)]
pub enum Goal {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
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
            Self::AtLeast(least) => format!("≥ {}", short(least)),
            Self::AtMost(most) => format!("≤ {}", short(most)),
        }
    }
}

/// One pair of measurements: the bare operation and ours, one after the other.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Duration of the bare operation.
    pub bare: Duration,
    /// Duration of ours.
    pub ours: Duration,
}

/// The rows so far.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
    missed: Vec<String>,
}

impl Table {
    /// Adds the ratio of our *speed* to the bare operation's.
    pub fn speed(&mut self, what: &str, pairs: &[Pair], goal: Option<Goal>) {
        self.pairs(what, pairs, goal, "speed", |pair| {
            pair.bare.as_secs_f64() / pair.ours.as_secs_f64()
        });
    }

    /// Adds the ratio of our *time* to the bare operation's.
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

    /// Prints all rows, aligned, as Markdown. Returns the rows that missed their goal.
    pub fn print(&self) -> &[String] {
        if !self.rows.is_empty() {
            aligned(["", "bare", "Lockkeeper", "ratio: median (range)", "goal", ""], &self.rows);
        }
        &self.missed
    }
}

/// Prints the measurements of each protocol on each broker.
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
pub fn aligned<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
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

/// Returns the median. For an even number of values, this is the mean of the middle two.
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

/// Returns the smallest value that this percentage of the values do not exceed.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let within = (values.len() * percent).div_ceil(100);
    values.get(within.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Returns the value with no more than two decimals.
fn short(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}
