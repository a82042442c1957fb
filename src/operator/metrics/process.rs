//! Resource usage of this process, under the metric names of Prometheus' own clients, as
//! far as Linux provides it in a line.

use std::fmt::Error;
use std::time::{Duration, SystemTime};

use nix::time::ClockId;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads the usage of this process at each scrape.
#[derive(Debug)]
pub(super) struct Process {
    started: SystemTime,
}

impl Process {
    /// Creates the metrics of a process that starts now.
    pub fn starting() -> Self {
        Self { started: SystemTime::now() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| match value {
            Some(value) => ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?),
            None => Ok(()),
        };
        let since = self.started.duration_since(SystemTime::UNIX_EPOCH).ok();
        gauge(
            "process_start_time_seconds",
            "Start time of the process, in seconds since 1970",
            since.map(|since| since.as_secs_f64()),
        )?;
        gauge("process_resident_memory_bytes", "Memory in use, in bytes", resident_bytes())?;
        gauge("process_open_fds", "Open file descriptors", open_fds())?;
        let Ok(used) = ClockId::CLOCK_PROCESS_CPUTIME_ID.now() else { return Ok(()) };
        let help = "User and system CPU time of the process, in seconds";
        let counter =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(Duration::from(used).as_secs_f64()).encode(counter)
    }
}

fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn open_fds() -> Option<f64> {
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is open only for this observation.
    u32::try_from(count.saturating_sub(1)).ok().map(f64::from)
}
