//! Secrets that must never be shown: the passwords of the test servers and the private
//! keys that tests create. Checks whether a text contains one of them, as plain text or
//! in base64.

use regex::Regex;

use crate::authority::private_keys;
use crate::environment::variable;

/// Prefix of every password of the test servers.
const PASSWORD: &str = "canary-";

/// Parts that are contained in every secret.
const MARKS: [&str; 6] = [
    PASSWORD,
    // The same in base64, for each of the three alignments: in a Secret's data or a
    // header.
    "Y2FuYXJ5L",
    "NhbmFyeS",
    "jYW5hcnkt",
    // The start of every private key that the tests create, in PEM, and the same in
    // base64.
    "MIGHAgEAMBMGByqGSM49AgEG",
    "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0t",
];

/// All secrets to search for.
pub struct Canaries {
    /// Finds any of them: one pass over a text takes as long for many as for one.
    any: Regex,
    keys: usize,
}

impl Canaries {
    /// Returns the current secrets: keys are those that tests have created so far.
    pub fn now() -> Self {
        let mut all: Vec<String> = MARKS.map(regex::escape).into();
        // Uses the end of the first and the start of the second of a key's three lines.
        // The rest is as public as the certificate, which contains it too.
        let keys = private_keys();
        for key in &keys {
            let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
            assert!(lines[0].starts_with(MARKS[4]) && lines.len() == 3, "another kind of key");
            all.extend([&lines[0][48..], &lines[1][..26]].map(regex::escape));
        }
        assert_passwords_are_marked();
        Self { any: Regex::new(&all.join("|")).unwrap(), keys: keys.len() }
    }

    /// Returns the number of private keys that it searches for.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Fails if this text contains a secret, without printing it: a leaked secret must
    /// not leak again in the output of the tests.
    pub fn not_in(&self, place: &str, text: &str) {
        let Some(at) = self.any.find(text).map(|found| found.start()) else { return };
        let start = text[..at].char_indices().rev().nth(300).map_or(0, |(start, _)| start);
        panic!("{place}: a password or a private key after: …{}", &text[start..at]);
    }
}

/// Checks the passwords of the test servers: the text between user and host.
fn assert_passwords_are_marked() {
    for name in ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"] {
        let url = variable(name);
        let password = url.split('@').next().unwrap().rsplit(':').next().unwrap();
        assert!(password.starts_with(PASSWORD), "the password of {name} is no canary");
    }
}
