//! Progress on a terminal: the number of elements and bytes, and their rate.

use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{HumanBytes, HumanFloatCount, ProgressBar, ProgressState, ProgressStyle};

/// A progress line on the terminal of standard error, removed when this is dropped.
/// Without a terminal, shows nothing.
pub(super) struct Progress {
    line: Option<ProgressBar>,
    bytes: u64,
}

impl Progress {
    /// Shows progress unless `quiet`, or `data` is a terminal too, because the two would
    /// mix.
    pub fn new(quiet: bool, data: &impl IsTerminal) -> Self {
        let is_shown = !quiet && stderr().is_terminal() && !data.is_terminal();
        let line = is_shown.then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {human_pos} elements, {msg}, {rate}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner())
                    .with_key("rate", rate);
            let line = ProgressBar::new_spinner();
            line.set_style(style);
            line.set_message(HumanBytes(0).to_string());
            line.enable_steady_tick(Duration::from_millis(120));
            line
        });
        Self { line, bytes: 0 }
    }

    /// Adds `elements` with a total of `bytes`.
    pub fn add(&mut self, elements: u64, bytes: u64) {
        let Some(line) = &self.line else { return };
        self.bytes += bytes;
        line.set_message(HumanBytes(self.bytes).to_string());
        line.inc(elements);
    }
}

fn rate(state: &ProgressState, text: &mut dyn Write) {
    let _ = write!(text, "{:.0}/s", HumanFloatCount(state.per_sec()));
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
