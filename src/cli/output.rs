//! How data goes to standard output: as a table for people, or as JSON or YAML
//! for programs.

use std::io::{Write, stdout};

use serde::Serialize;

use super::Failure;

/// The form of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// The main columns
    #[default]
    Table,
    /// All columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// A column: its heading, and whether it is shown only when there is room.
pub(super) type Column = (&'static str, bool);

/// Prints `data`: as it is, or as the table that `columns` and `rows` make.
pub(super) fn print(
    format: Format,
    data: &impl Serialize,
    columns: &[Column],
    rows: &[Vec<String>],
) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(Failure::CANT_CREATE, error.to_string());
    let text = match format {
        Format::Table => table(columns, rows, false),
        Format::Wide => table(columns, rows, true),
        Format::Json => serde_json::to_string_pretty(data).map_err(|error| failed(&error))? + "\n",
        Format::Yaml => serde_yaml::to_string(data).map_err(|error| failed(&error))?,
    };
    stdout().write_all(text.as_bytes()).map_err(|error| failed(&error))
}

fn table(columns: &[Column], rows: &[Vec<String>], wide: bool) -> String {
    let shown: Vec<usize> = (0..columns.len()).filter(|&i| wide || !columns[i].1).collect();
    let heading: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = shown.iter().map(|&column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = shown.iter().zip(&widths);
        let padded: Vec<String> =
            cells.map(|(&column, width)| format!("{:width$}", line[column])).collect();
        text += padded.join("   ").trim_end();
        text.push('\n');
    }
    text
}

/// What is not known, in a table.
pub(super) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_some_only_when_asked() {
        let columns = [("SLOT", false), ("WHO", false), ("URL", true)];
        let row = |cells: [&str; 3]| cells.map(ToOwned::to_owned).to_vec();
        let rows = [row(["1", "zoë", "-"]), row(["10", "build-41", "http://x"])];
        assert_eq!(table(&columns, &rows, false), "SLOT   WHO\n1      zoë\n10     build-41\n");
        let wide = "SLOT   WHO        URL\n1      zoë        -\n10     build-41   http://x\n";
        assert_eq!(table(&columns, &rows, true), wide);
    }
}
