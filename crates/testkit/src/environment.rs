//! Addresses of the real servers, unique names, waiting, and signals and figures of processes.

use std::time::{Duration, Instant};

/// Returns a variable that the test command sets.
///
/// # Panics
///
/// Panics if it is not set: there are no servers, and no test is skipped without them.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `make test` or `make bench`, or `dev/up target/test --no-operator` and `. target/test/env`")
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

/// Time limit for a condition, unless a test is about time.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(
    what: &str,
    patience: Duration,
    mut so: impl FnMut() -> F,
) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(pause(start, Duration::from_millis(50), Duration::from_millis(150)))
            .await;
    }
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

/// Returns a figure of the kernel about the memory of a process, in KiB: `VmRSS`, its resident
/// memory, for example.
pub fn kib(pid: u32, figure: &str) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(&format!("{figure}:"))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the peak memory of a process, in MiB.
pub fn peak(pid: u32) -> u64 {
    u64::from(kib(pid, "VmHWM")) / 1024
}

/// Returns the memory of a process as reported by the kernel, in MiB: its own pages, and
/// those of its program file, of which a debug build has many.
pub fn memory(pid: u32) -> (u64, u64) {
    (u64::from(kib(pid, "RssAnon")) / 1024, u64::from(kib(pid, "RssFile")) / 1024)
}

/// Returns the processor time of a process.
pub fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the program's name in parentheses, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Chooses the implementation of TLS. Without it, the first HTTP client of a process panics.
pub(crate) fn provide_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
