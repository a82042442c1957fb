//! The parts of a picture, with their positions and texts. See `svg` for how they are drawn.

/// A horizontal position, in half columns. Event `i` is at `2 * i + 1`; `2 * i` is between it
/// and the previous event.
pub(crate) type Place = usize;

/// A picture of one violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    /// The property, the cause and a description.
    pub(crate) title: String,
    /// The position in the run, the implementation and the broker.
    pub(crate) subtitle: String,
    /// The events, from left to right.
    pub(crate) columns: Vec<Column>,
    /// The holds according to each process.
    pub(crate) processes: Vec<Swimlane>,
    /// The ownership of each slot at the broker. Empty if the broker was not observed.
    pub(crate) broker: Vec<Swimlane>,
    /// The violation.
    pub(crate) red: Red,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its time, relative to the instant at which the violation became certain.
    pub(crate) time: String,
    /// Its time since the start of the run, as hover text.
    pub(crate) hover: String,
}

/// A process or a slot over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swimlane {
    /// Its name.
    pub(crate) name: String,
    /// Holds, or ownerships.
    pub(crate) bars: Vec<Bar>,
    /// Requests and answers.
    pub(crate) ticks: Vec<Tick>,
    /// Faults.
    pub(crate) faults: Vec<Tick>,
}

/// A hold, or an ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    /// The holder or owner. Each process has the same colour in the whole picture.
    pub(crate) process: u32,
    /// Where it begins.
    pub(crate) from: Place,
    /// Where it ends.
    pub(crate) to: Place,
    /// Whether the ownership at the broker is certain from `from` to `to`.
    pub(crate) certain: bool,
    /// The label inside the bar. May be empty.
    pub(crate) label: String,
    /// The hover text.
    pub(crate) hover: String,
}

/// A mark at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Its position.
    pub(crate) at: Place,
    /// The label.
    pub(crate) label: String,
    /// The hover text.
    pub(crate) hover: String,
}

/// The overlap or the false claim that violates the property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Red {
    /// Where it starts.
    pub(crate) from: Place,
    /// Where it ends.
    pub(crate) to: Place,
    /// The kind and duration of the violation, the property and the cause.
    pub(crate) label: String,
}
