//! `lockkeeper completion`: generates shell completions for the arguments.

use super::failure::Failure;
use super::output;

/// Arguments of `lockkeeper completion`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(arguments: &Arguments, command: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "lockkeeper", &mut script);
    output::write(&script)
}
