//! The program `lockkeeper`. Everything it does is in the library's
//! [`lockkeeper::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: kube, lapin and redis each bring rustls, and a process in which
    // no provider was chosen panics at the first TLS configuration.
    let _ = rustls::crypto::ring::default_provider().install_default();
    lockkeeper::cli::main()
}
