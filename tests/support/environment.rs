//! Where the real servers are, names that no other test has, signals to processes and their memory.

#![allow(dead_code, reason = "not every test binary uses all of it")]

/// A variable that the test command sets.
///
/// # Panics
///
/// Without it: there are no servers, and no test is skipped for want of one.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `make test`, or `dev/up target/test --no-operator` and `. target/test/env`")
    })
}

/// Some letters and digits.
pub fn random() -> String {
    format!("{:08x}", rand::random::<u32>())
}

/// Sends a signal to a process of ours.
pub fn signal(pid: u32, name: &str) {
    let _ = std::process::Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
}

/// What a process has in memory, as the kernel says it, in MiB: pages of its own,
/// and those of its program file, of which a debug build has many.
pub fn memory(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    (field("RssAnon:"), field("RssFile:"))
}
