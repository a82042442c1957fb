//! The exit codes. See `judging` for verdicts.

use std::process::ExitCode;

use crate::check::verdict::Verdict;

/// Exit code after a violation, or if the driver is not understood.
pub const FAILED: u8 = 1;
/// Exit code if nothing could be judged, for example because the broker is unreachable.
pub const NOT_DONE: u8 = 2;

/// Returns exit code 0, or 1 if there is a violation.
pub fn exit(verdict: &Verdict) -> ExitCode {
    if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}
