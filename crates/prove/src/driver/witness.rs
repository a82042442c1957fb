//! The witness: the command that an implementation runs under the lock when it is tested with
//! `--exec`. It runs until the prover closes its connection; the lock counts as held while it
//! runs. See `exec` for the prover's side.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use serde::{Deserialize, Serialize};

use crate::history::Variables;

/// The values that a witness found in its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Value of [`Variables::slot_env`].
    pub slot: Option<String>,
    /// Value of [`Variables::fence_env`].
    pub fence: Option<String>,
    /// Value of [`Variables::token_env`].
    pub token: Option<String>,
}

impl Found {
    /// Reads the variables from the environment.
    pub fn read(variables: &Variables, environment: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &Option<String>| name.as_deref().and_then(&environment);
        Self {
            slot: value(&variables.slot_env),
            fence: value(&variables.fence_env),
            token: value(&variables.token_env),
        }
    }
}

/// Connects to the prover at `port`, writes one line with the values of the variables, and
/// waits until the prover closes the connection.
///
/// # Errors
///
/// Fails if the prover could not be reached.
pub fn run(port: u16, variables: &Variables) -> io::Result<()> {
    let mut prover = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let text = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let found = Found::read(variables, text);
    let line = serde_json::to_string(&found)?;
    writeln!(prover, "{line}")?;
    let mut rest = Vec::new();
    // A connection reset also ends the hold.
    let _ = prover.read_to_end(&mut rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_witness_describes_its_environment_and_ends_with_its_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let variables = Variables {
            slot_env: Some("PATH".to_owned()),
            fence_env: Some("NO_SUCH_VARIABLE_HERE".to_owned()),
            token_env: None,
        };
        let witness = std::thread::spawn(move || run(port, &variables));
        let (connection, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&connection).read_line(&mut line).unwrap();
        let found: Found = serde_json::from_str(&line).unwrap();
        assert_eq!(found.slot, std::env::var("PATH").ok());
        assert_eq!((found.fence, found.token), (None, None));
        assert!(!witness.is_finished());
        drop(connection);
        witness.join().unwrap().unwrap();
    }
}
