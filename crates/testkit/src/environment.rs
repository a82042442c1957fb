//! Addresses of the real servers, unique names, and signals and memory of processes.

use std::time::{Duration, Instant};

/// Returns a variable that the test command sets.
///
/// # Panics
///
/// Panics if it is not set: there are no servers, and no test is skipped without them.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `make test`, or `dev/up target/test --no-operator` and `. target/test/env`")
    })
}

/// Returns whether longer tests are requested than fit into every run: `make soak`.
pub fn is_soak() -> bool {
    std::env::var_os("LOCKKEEPER_SOAK").is_some()
}

/// Returns the pause before the next check of a condition that has been awaited since
/// `start`. A tenth of that time, so that checks do not dominate the load of servers on a
/// busy machine.
pub fn pause(start: Instant, shortest: Duration, longest: Duration) -> Duration {
    (start.elapsed() / 10).clamp(shortest, longest)
}

/// Returns random letters and digits.
pub fn random() -> String {
    format!("{:08x}", rand::random::<u32>())
}

/// Sends a signal to a process of the tests.
pub fn signal(pid: u32, name: &str) {
    kill(&pid.to_string(), name);
}

/// Sends a signal to every process of the group with this leader.
pub fn signal_group(leader: u32, name: &str) {
    kill(&format!("-{leader}"), name);
}

fn kill(whom: &str, name: &str) {
    let _ = std::process::Command::new("kill")
        .args([&format!("-{name}"), "--", whom])
        .stderr(std::process::Stdio::null())
        .status();
}

/// Returns the peak memory of a process, in MiB.
pub fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Returns the memory of a process as reported by the kernel, in MiB: its own pages, and
/// those of its program file, of which a debug build has many.
pub fn memory(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    (field("RssAnon:"), field("RssFile:"))
}
