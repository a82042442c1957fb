//! x
use super::Failure;
/// x
#[derive(Debug, clap::Args)]
pub struct Arguments {}
pub(super) fn run(_: Arguments) -> Result<(), Failure> {
    Ok(())
}
