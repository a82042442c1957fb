//! The word for what clients of a lock hold.

/// What clients of a lock hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A slot, which has a number.
    #[default]
    Slot,
    /// A token. Tokens have no numbers.
    Token,
    /// A true mutex as a whole.
    Mutex,
}

impl Unit {
    /// Returns the word for one: `slot`, `token` or `mutex`.
    #[must_use]
    pub fn one(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Token => "token",
            Self::Mutex => "mutex",
        }
    }

    /// Returns the word for several: `slots`, `tokens` or `mutexes`.
    #[must_use]
    pub fn many(self) -> &'static str {
        match self {
            Self::Slot => "slots",
            Self::Token => "tokens",
            Self::Mutex => "mutexes",
        }
    }

    /// Formats a count of them: `1 slot`, `5 tokens`.
    #[must_use]
    pub fn count(self, count: u32) -> String {
        format!("{count} {}", if count == 1 { self.one() } else { self.many() })
    }
}
