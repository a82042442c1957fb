//! `lockkeeper completion`: what a shell needs to complete our arguments.

use std::io::{Write, stdout};

use clap::CommandFactory;

use super::{Cli, Failure};

/// Arguments of `lockkeeper completion`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "lockkeeper", &mut script);
    stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(Failure::CANT_CREATE, error.to_string()))
}
