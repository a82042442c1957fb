//! The witness: the command that an implementation runs under the lock when it is tested with
//! `--exec`. It runs until the prover closes its connection; the lock counts as held while it
//! runs. See `exec` for the prover's side.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use serde::{Deserialize, Serialize};

/// Names of the environment variables in which the implementation describes a grant to the
/// command that it runs. All are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[allow(clippy::doc_markdown, reason = "the text of --help is not Markdown")]
pub struct Variables {
    /// With --exec: environment variable that contains the slot number, for example LOCK_SLOT
    #[arg(long, value_name = "NAME")]
    pub slot_env: Option<String>,

    /// With --exec: environment variable that contains the fencing token, for example LOCK_TOKEN
    #[arg(long, value_name = "NAME")]
    pub fence_env: Option<String>,

    /// With --exec: environment variable that contains the id of the token in protocol Token,
    /// for example LOCK_TOKEN_ID
    #[arg(long, value_name = "NAME")]
    pub token_env: Option<String>,
}

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

impl Variables {
    /// Returns the options as command line arguments.
    pub fn options(&self) -> Vec<String> {
        let named = [
            ("--slot-env", &self.slot_env),
            ("--fence-env", &self.fence_env),
            ("--token-env", &self.token_env),
        ];
        let given = named.into_iter().filter_map(|(option, name)| Some((option, name.clone()?)));
        given.flat_map(|(option, name)| [option.to_owned(), name]).collect()
    }

    /// Reads the variables from the environment.
    pub fn find(&self, variable: impl Fn(&str) -> Option<String>) -> Found {
        let value = |name: &Option<String>| name.as_deref().and_then(&variable);
        Found {
            slot: value(&self.slot_env),
            fence: value(&self.fence_env),
            token: value(&self.token_env),
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
    let found = variables.find(|name| std::env::var(name).ok());
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

    #[test]
    fn options_name_only_the_given_variables() {
        let variables = Variables { fence_env: Some("T".to_owned()), ..Variables::default() };
        assert_eq!(variables.options(), ["--fence-env", "T"]);
    }
}
