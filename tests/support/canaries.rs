//! What nobody may ever read: the passwords of the test servers and the private keys that
//! tests make; and whether a text has one of them, as it is or in base64.

use std::sync::OnceLock;

use crate::authority::private_keys;
use crate::environment::variable;

/// What every password of the test servers starts with.
const PASSWORD: &str = "canary-";

/// What each secret has in it, whichever it is.
const MARKS: [&str; 6] = [
    PASSWORD,
    // The same in base64, by where in three bytes it starts: a Secret's data, a header.
    "Y2FuYXJ5L",
    "NhbmFyeS",
    "jYW5hcnkt",
    // The start of every private key that the tests make; in PEM, and that in base64.
    "MIGHAgEAMBMGByqGSM49AgEG",
    "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0t",
];

/// Looks for all of them.
pub struct Canaries(Vec<String>);

impl Canaries {
    /// Those of now: the keys are those that tests have made so far.
    pub fn now() -> Self {
        let marks = MARKS.iter().map(ToString::to_string);
        let passwords = passwords().iter().cloned();
        // Of a key's three lines: the end of the first and the start of the second. The
        // rest is as public as the certificate that has it too. Short, because a short
        // text is found much faster.
        let keys = private_keys().into_iter().flat_map(|key| {
            let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with('-')).collect();
            assert!(lines[0].starts_with(MARKS[4]) && lines.len() == 3, "another kind of key");
            [lines[0][48..].to_owned(), lines[1][..26].to_owned()]
        });
        Self(marks.chain(passwords).chain(keys).collect())
    }

    /// How many private keys it looks for.
    pub fn keys(&self) -> usize {
        (self.0.len() - MARKS.len() - passwords().len()) / 2
    }

    /// Fails if this text has one, without showing it: what leaks must not leak again into
    /// the output of the tests.
    pub fn not_in(&self, place: &str, text: &str) {
        let Some(at) = self.0.iter().find_map(|canary| text.find(canary)) else { return };
        let start = text[..at].char_indices().rev().nth(300).map_or(0, |(start, _)| start);
        panic!("{place}: a password or a private key after: …{}", &text[start..at]);
    }
}

/// The passwords of the test servers: what stands between user and host.
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
