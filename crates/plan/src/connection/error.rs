//! Why a connection's settings are invalid. See `connection` for how they are read.

/// Why a connection's settings are invalid. Contains only keys of the Secret, never a
/// value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A key is missing.
    #[error("the connection has no {key}: add the key {key} ({instead})")]
    MissingKey {
        /// The missing key.
        key: &'static str,
        /// Alternatives to the key.
        instead: &'static str,
    },
    /// A key has an invalid value.
    #[error("the connection's {key} is not valid: {why}")]
    BadValue {
        /// The key of the value.
        key: &'static str,
        /// The expected format.
        why: &'static str,
    },
    /// Certificates are given for a connection that is not encrypted. Their user expects it to be.
    #[error("{key} is set, and the connection is not encrypted: {next}")]
    NotEncrypted {
        /// The key or variable of a certificate.
        key: &'static str,
        /// The next step.
        next: &'static str,
    },
    /// An environment variable is not UTF-8.
    #[error("the environment variable {variable} is not UTF-8 text: correct it, or unset it")]
    NotText {
        /// The variable.
        variable: &'static str,
    },
}

impl SettingsError {
    /// Names a value as its user does, for example by an option instead of a key.
    #[must_use]
    pub fn named(self, key: &str, name: &'static str) -> Self {
        match self {
            Self::MissingKey { key: old, instead } if old == key => {
                Self::MissingKey { key: name, instead }
            }
            Self::BadValue { key: old, why } if old == key => Self::BadValue { key: name, why },
            other => other,
        }
    }
}
