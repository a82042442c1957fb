//! Reads and writes a history as JSON lines: the header, then one event a line. See the parent
//! module for the events.

use std::io::{BufRead, Write};

use super::{Event, Header, History, VERSION};

/// Error of reading or writing a history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file has no header.
    #[error("the history is empty: it must begin with a header line")]
    Empty,
    /// The file has another version of the format.
    #[error("the history has version {0}, but this program supports version {VERSION}")]
    Version(u32),
    /// A line is invalid.
    #[error("line {line} of the history: {source}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The error in the line.
        source: serde_json::Error,
    },
    /// An event is earlier than the one before it.
    #[error(
        "line {line} of the history is earlier than the previous line. Events must be in the order of time"
    )]
    Order {
        /// The number of the line, from 1.
        line: usize,
    },
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl History {
    /// Writes the history as JSON lines.
    ///
    /// # Errors
    ///
    /// [`HistoryError::Io`] if writing fails.
    pub fn write(&self, mut to: impl Write) -> Result<(), HistoryError> {
        let mut line =
            |json: serde_json::Result<String>| -> std::io::Result<()> { writeln!(to, "{}", json?) };
        line(serde_json::to_string(&self.header))?;
        for event in &self.events {
            line(serde_json::to_string(event))?;
        }
        to.flush()?;
        Ok(())
    }

    /// Reads a history that [`History::write`] or another tool wrote.
    ///
    /// # Errors
    ///
    /// [`HistoryError`] with the number of the invalid line.
    pub fn read(from: impl BufRead) -> Result<Self, HistoryError> {
        let mut lines = from.lines().enumerate();
        let (_, first) = lines.next().ok_or(HistoryError::Empty)?;
        let header: Header = serde_json::from_str(&first?)
            .map_err(|source| HistoryError::Line { line: 1, source })?;
        if header.version != VERSION {
            return Err(HistoryError::Version(header.version));
        }
        let mut events: Vec<Event> = Vec::new();
        for (index, text) in lines {
            let line = index + 1;
            let event: Event = serde_json::from_str(&text?)
                .map_err(|source| HistoryError::Line { line, source })?;
            if events.last().is_some_and(|last| last.at > event.at) {
                return Err(HistoryError::Order { line });
            }
            events.push(event);
        }
        Ok(Self { header, events })
    }
}
