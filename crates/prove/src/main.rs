//! The program `lockkeeper-prove`. See `cli` for its subcommands.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_prove::cli::main()
}
