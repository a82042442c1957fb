//! The subcommand `rules`: prints the *must* rules of docs/protocols. See `check::rules` for the
//! rules and their checks.

use std::io::Write;
use std::process::ExitCode;

use crate::check::rules::{Judged, Rule, all};

/// Prints a table of all rules.
///
/// # Errors
///
/// Fails if stdout cannot be written.
pub fn print() -> Result<ExitCode, String> {
    write!(std::io::stdout(), "{}", table()).map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the table: id, document, quote, and how the rule is judged.
fn table() -> String {
    let head = ["id", "document", "quote", "judged by"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(all().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let [id, document, quote] = [0, 1, 2].map(|column| width(column).unwrap_or_default());
    let line = |[first, second, third, last]: &[String; 4]| {
        format!("{first:<id$}  {second:<document$}  {third:<quote$}  {last}\n")
    };
    rows.iter().map(line).collect()
}

fn row(rule: Rule) -> [String; 4] {
    let judged = match rule.judged {
        Judged::Rule => "Rule".to_owned(),
        Judged::Property(property) => format!("{property:?}"),
        Judged::NotObservable(why) => format!("not observable: {why}"),
    };
    [rule.id.to_owned(), rule.document.to_owned(), rule.quote.to_owned(), judged]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_aligns_every_rule_with_its_heading() {
        let table = table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 1 + all().count());
        let before: Vec<char> = lines[0].chars().collect();
        let start = before.windows(6).position(|six| six == ['j', 'u', 'd', 'g', 'e', 'd']);
        for (line, rule) in lines[1..].iter().zip(all()) {
            let judged: String = line.chars().skip(start.unwrap()).collect();
            assert_eq!(judged, row(rule)[3], "{line}");
        }
    }
}
