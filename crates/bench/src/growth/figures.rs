//! The figures of the growth, and the goals of each.

use crate::table::{Goal, LINEAR};

/// Measurements at one size.
pub struct Figures {
    pub size: u32,
    /// Seconds to create and to delete this many slots, and to observe them.
    pub grow: f64,
    pub shrink: f64,
    pub observe: f64,
    /// Seconds from the start of an operator until it has reconciled this many objects.
    pub start: f64,
    /// Resident memory after that, in MiB.
    pub memory: f64,
}

/// A measurement, with its name, the unit in the table and the goal of its growth.
pub type Row = (&'static str, &'static str, fn(&Figures) -> f64, Option<Goal>);

/// Every measurement.
pub const ROWS: [Row; 5] = [
    // The broker takes longer for each of more queues, and both servers do for each of more
    // objects. So these times are compared with as many bare operations.
    ("slots: resize from 0", "s", |f| f.grow, None),
    ("slots: resize to 0", "s", |f| f.shrink, None),
    ("slots: observe", "s", |f| f.observe, None),
    ("objects: start of an operator", "s", |f| f.start, None),
    ("objects: memory of an operator", "MiB", |f| f.memory, Some(LINEAR)),
];
