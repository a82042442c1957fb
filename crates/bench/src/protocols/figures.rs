//! The figures of the comparison of the protocols.

/// Measurements of one protocol on one broker.
pub struct Figures {
    pub protocol: &'static str,
    pub broker: String,
    /// Acquisitions per second, uncontended and contended.
    pub acquire: f64,
    pub contended: f64,
    /// Proofs per second.
    pub verify: f64,
    /// Median in milliseconds.
    pub hand_over: f64,
    /// Milliseconds for all slots.
    pub grow: f64,
    pub shrink: f64,
}

impl Figures {
    /// Returns its row of the table.
    pub fn row(&self) -> [String; 8] {
        let rate = |rate: f64| format!("{rate:.0}/s");
        let ms = |ms: f64| format!("{ms:.1} ms");
        [
            self.broker.clone(),
            self.protocol.to_owned(),
            rate(self.acquire),
            rate(self.contended),
            rate(self.verify),
            ms(self.hand_over),
            ms(self.grow),
            ms(self.shrink),
        ]
    }
}
