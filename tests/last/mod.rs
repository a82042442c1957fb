//! Checks of the whole test run, after all other tests. dev/test runs them in a separate
//! step.

mod verdicts;
mod whole_run;
