//! The figures of a peer.

/// Measurements of one implementation of a lock.
pub struct Figures {
    pub name: &'static str,
    /// Acquisitions per second, of one client and of all together.
    pub alone: f64,
    pub contended: f64,
    /// The smallest number of acquisitions of one of many clients, of their mean.
    pub share: f64,
    /// Milliseconds from the beginning of a release until another client holds.
    pub hand_over: f64,
    pub hand_over_p99: f64,
    /// Milliseconds from SIGKILL for a holder until another client holds.
    pub kill: f64,
    /// Milliseconds from the start of a process until it holds the lock. With `lockkeeper exec`,
    /// until the command's first output.
    pub start: f64,
    /// Of a waiting client, per minute.
    pub messages: f64,
    pub bytes: f64,
}

impl Figures {
    /// Returns its row of the table.
    pub fn row(&self) -> [String; 8] {
        [
            self.name.to_owned(),
            format!("{:.0}/s", self.alone),
            format!("{:.0}/s", self.contended),
            format!("{:.2}", self.share),
            format!("{:.2} ms; {:.1} ms", self.hand_over, self.hand_over_p99),
            format!("{:.1} ms", self.kill),
            format!("{:.1} ms", self.start),
            format!("{:.0} messages, {:.0} bytes", self.messages, self.bytes),
        ]
    }
}
