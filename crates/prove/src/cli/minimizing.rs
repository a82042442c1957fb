//! The option `--minimize` of `replay`: reports the smallest run that still violates the first
//! recorded property. See `minimize` of `run` for the search.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::exit::exit;
use super::judging::{print, put};
use crate::check::verdict::{Verdict, Violation};
use crate::report::Report;
use crate::report::directory::RUN;
use crate::report::text::Text;
use crate::run::RunOptions;
use crate::run::minimize::search::Size;
use crate::run::minimize::{Minimal, TRIES, Wanted, minimize};

/// Searches for the smallest run with the first violation of the recorded run, and writes it to
/// the directory, if one is given.
///
/// # Errors
///
/// The recorded run has no violation, the violation did not occur again, or the implementation
/// cannot be used.
pub async fn minimized(
    options: &RunOptions,
    recorded: &Verdict,
    limit: Duration,
    directory: Option<&Path>,
) -> Result<ExitCode, String> {
    let first = recorded.violations.first();
    let first =
        first.ok_or("the recorded run has no violation, so there is nothing to minimize")?;
    let wanted = Wanted::new(first);
    print(&format!("searching for the smallest run with {}\n", sentence(first)))?;
    let full = Size::of(options);
    let mut failed = Ok(());
    let tried = |size: Size, violates: bool| {
        let result = if violates { "violated" } else { "not violated" };
        let line = format!("{}: {result}\n", described(size));
        failed = std::mem::replace(&mut failed, Ok(())).and_then(|()| print(&line));
    };
    let (after, until) = (Duration::from_micros(first.at), Instant::now() + limit);
    let found = minimize(options, &wanted, after, until, tried).await;
    failed?;
    let found = found.map_err(|error| error.to_string())?.ok_or(
        "the violation did not occur again, so nothing could be minimized. Repeat the search, or set a longer time with --for",
    )?;
    let Minimal { outcome, .. } = &found;
    let report = Report::new(&outcome.history, None, &outcome.troubles)
        .map_err(|error| error.to_string())?;
    put(directory, &outcome.history, &report)?;
    print(&format!("\n{}", Text { report: &report, directory }))?;
    let smallest = wanted.first(&outcome.verdict).unwrap_or(first);
    print(&format!("smallest run with {}\n", sentence(smallest)))?;
    print(&summary(full, &found, directory))?;
    Ok(exit(&outcome.verdict))
}

/// Returns what the smallest run contains, what was left out, and how to repeat it.
fn summary(full: Size, found: &Minimal, directory: Option<&Path>) -> String {
    let Minimal { size, violated, tries, is_unfinished, .. } = found;
    let out = left_out(full, *size);
    let out = if out.is_empty() { "nothing".to_owned() } else { out.join(", ") };
    let mut text = format!(
        "kept: {}\nleft out: {out}\nviolated in {violated} of {tries} runs of this size\n",
        described(*size)
    );
    if *is_unfinished {
        text += "the time for the search ended, so a smaller run may exist: set a longer one with --for\n";
    }
    // Writing to a string cannot fail.
    let _ = match directory {
        Some(directory) => {
            let file = directory.join(RUN);
            let file = file.display();
            writeln!(text, "repeat it: lockkeeper-prove replay '{file}' --times {TRIES}")
        }
        None => {
            writeln!(text, "write it with --out DIR, to repeat it with lockkeeper-prove replay")
        }
    };
    text
}

fn sentence(violation: &Violation) -> String {
    format!("{:?} {}: {}", violation.property, violation.cause, violation.what)
}

/// Returns the options of a run of this size, in words.
fn described(size: Size) -> String {
    let Size { mut faults, clients, slots, resize_within, duration } = size;
    let mut text = format!("{}, {}", counted(clients, "client"), counted(slots, "slot"));
    for (name, percent) in faults.kinds() {
        if *percent > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, ", {name} {percent} %");
        }
    }
    if resizes(slots, resize_within) {
        let _ = write!(text, ", resizes within {} ms", resize_within.as_millis());
    }
    let _ = write!(text, ", {:.1} s", duration.as_secs_f64());
    text
}

fn left_out(mut full: Size, mut size: Size) -> Vec<String> {
    let mut out = Vec::new();
    for ((name, before), (_, after)) in full.faults.kinds().into_iter().zip(size.faults.kinds()) {
        if *before > *after {
            out.push(format!("fault {name}"));
        }
    }
    if resizes(full.slots, full.resize_within) && !resizes(size.slots, size.resize_within) {
        out.push("resizes".to_owned());
    }
    for (name, before, after) in
        [("client", full.clients, size.clients), ("slot", full.slots, size.slots)]
    {
        if before > after {
            out.push(counted(before - after, name));
        }
    }
    out
}

fn resizes(slots: u32, within: Duration) -> bool {
    slots > 1 && !within.is_zero()
}

fn counted(count: u32, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Faults;

    #[test]
    fn describes_what_was_kept_and_what_was_left_out() {
        let full = Size {
            faults: Faults::SOME,
            clients: 4,
            slots: 2,
            resize_within: Duration::from_millis(600),
            duration: Duration::from_secs(5),
        };
        let whole = "4 clients, 2 slots, kill 5 %, cut 10 %, slow 5 %, again 10 %, resizes within 600 ms, 5.0 s";
        assert_eq!(described(full), whole);
        assert!(left_out(full, full).is_empty());
        let faults = Faults { cut: 10, ..Faults::NONE };
        let small = Size { faults, clients: 1, slots: 1, ..full };
        assert_eq!(described(small), "1 client, 1 slot, cut 10 %, 5.0 s");
        let out = ["fault kill", "fault slow", "fault again", "resizes", "3 clients", "1 slot"];
        assert_eq!(left_out(full, small), out);
    }
}
