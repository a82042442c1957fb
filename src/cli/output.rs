//! Writes data to standard output: as a table for users, or as JSON or YAML for programs.

use serde::Serialize;

use super::failure::Failure;
pub(super) use super::streams::write;

/// Output format of data.
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
    /// Only names, one per line
    Name,
}

/// A column: its heading, and whether it is only shown in wide output.
pub(super) type Column = (&'static str, bool);

/// Prints `data` as JSON or YAML, as a table of `columns` and `rows`, or only the cells
/// of the column `named_by`.
pub(super) fn print(
    format: Format,
    data: &impl Serialize,
    columns: &[Column],
    rows: &[Vec<String>],
    named_by: &str,
) -> Result<(), Failure> {
    let text = match format {
        Format::Table => table(columns, rows, false),
        Format::Wide => table(columns, rows, true),
        Format::Name => {
            let column = columns.iter().position(|(name, _)| *name == named_by).unwrap_or(0);
            rows.iter().map(|row| row[column].clone() + "\n").collect()
        }
        Format::Json | Format::Yaml => return print_data(format, data),
    };
    write(&text)
}

/// Prints `data` as YAML, otherwise as JSON.
pub(super) fn print_data(format: Format, data: &impl Serialize) -> Result<(), Failure> {
    let text = match format {
        Format::Yaml => serde_yaml::to_string(data).map_err(|error| failed(&error))?,
        _ => serde_json::to_string_pretty(data).map_err(|error| failed(&error))? + "\n",
    };
    write(&text)
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Failure::CANT_CREATE, error.to_string())
}

/// Formats a table with a heading, including all columns if `wide`.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], wide: bool) -> String {
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

/// Formats an unknown value as a dash, for tables.
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
