//! The program `lockkeeper`. See the library's [`lockkeeper::cli`] for the commands.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // Must come first: kube, lapin and redis each bring rustls. Without an installed
    // provider, the process panics at the first TLS configuration.
    let _ = rustls::crypto::ring::default_provider().install_default();
    lockkeeper::cli::main()
}
