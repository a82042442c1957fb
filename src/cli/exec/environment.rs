//! The environment of the command of `exec`. See `starter` for the process that applies it.

use std::process::Command;

use serde::{Deserialize, Serialize};

/// The variables that the command's environment has in addition, and those that it must not
/// have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Environment(Vec<(String, Option<String>)>);

impl Environment {
    /// Sets a variable, or removes it.
    pub fn set(&mut self, name: &str, value: Option<String>) {
        self.0.push((name.to_owned(), value));
    }

    /// Applies them to a command.
    pub fn apply(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}
