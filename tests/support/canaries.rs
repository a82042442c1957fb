//! Secrets that must never be shown: the passwords of the test servers and the private
//! keys that tests create. Checks whether a text contains one of them, as plain text or
//! in base64.

use std::sync::OnceLock;

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
pub struct Canaries(Vec<String>);

impl Canaries {
    /// Returns the current secrets: keys are those that tests have created so far.
    pub fn now() -> Self {
        let marks = MARKS.iter().map(ToString::to_string);
        let passwords = passwords().iter().cloned();
        // Uses the end of the first and the start of the second of a key's three lines.
        // The rest is as public as the certificate, which contains it too. Short texts
        // are found much faster.
        let keys = private_keys().into_iter().flat_map(|key| {
            let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
            assert!(lines[0].starts_with(MARKS[4]) && lines.len() == 3, "another kind of key");
            [lines[0][48..].to_owned(), lines[1][..26].to_owned()]
        });
        Self(marks.chain(passwords).chain(keys).collect())
    }

    /// Returns the number of private keys that it searches for.
    pub fn keys(&self) -> usize {
        (self.0.len() - MARKS.len() - passwords().len()) / 2
    }

    /// Fails if this text contains a secret, without printing it: a leaked secret must
    /// not leak again in the output of the tests.
    pub fn not_in(&self, place: &str, text: &str) {
        let Some(at) = self.0.iter().find_map(|canary| text.find(canary)) else { return };
        let start = text[..at].char_indices().rev().nth(300).map_or(0, |(start, _)| start);
        panic!("{place}: a password or a private key after: …{}", &text[start..at]);
    }
}

/// Returns the passwords of the test servers: the text between user and host.
fn passwords() -> &'static [String] {
    static PASSWORDS: OnceLock<Vec<String>> = OnceLock::new();
    PASSWORDS.get_or_init(|| {
        ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"]
            .map(|name| {
                let url = variable(name);
                let password = url.split('@').next().unwrap().rsplit(':').next().unwrap();
                assert!(password.starts_with(PASSWORD), "the password of {name} is no canary");
                password.to_owned()
            })
            .into()
    })
}
