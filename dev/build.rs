//! Tells the program which compiler built it, for `lockkeeper_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=dev/build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    // "rustc 1.91.0 (f8297e351 2025-10-28)"
    let version = version.as_deref().and_then(|text| text.split_whitespace().nth(1));
    println!("cargo::rustc-env=LOCKKEEPER_RUSTC={}", version.unwrap_or_default());
}
