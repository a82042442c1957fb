//! `lockkeeper completion`: what a shell needs to complete our arguments.

use std::io::stdout;

use clap::CommandFactory;

use super::Cli;

/// Arguments of `lockkeeper completion`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(arguments: &Arguments) {
    clap_complete::generate(arguments.shell, &mut Cli::command(), "lockkeeper", &mut stdout());
}
