//! Times and durations as text.

/// Returns a time since the start of the run, in seconds.
pub(super) fn second(micros: u64) -> String {
    format!("{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
}

/// Returns a duration in the most readable unit.
pub(super) fn length(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}.{:03} s", micros / 1_000_000, micros % 1_000_000 / 1_000),
    }
}
