//! `lockkeeper install`: copies this program to a directory. An init container uses it to put the
//! program into a volume for the image of another container: the image of this program contains
//! no `cp`.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::common::say;
use super::failure::Failure;

/// Name of the copy.
const NAME: &str = "lockkeeper";

/// Arguments of `lockkeeper install`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Directory that exists, for example a volume that another container mounts too
    directory: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let copy = arguments.directory.join(NAME);
    place(&copy).map_err(|error| {
        let message = format!("the program can't be copied to {}: {error}", copy.display());
        Failure::new(Failure::CANT_CREATE, message)
    })?;
    say(format_args!("{} is installed", copy.display()));
    Ok(())
}

/// Copies this program. A copy that runs is replaced as a whole, or not at all.
fn place(copy: &Path) -> io::Result<()> {
    // The link works also if the file was replaced while this program runs.
    let program = Path::new("/proc/self/exe");
    let new = copy.with_file_name(format!(".{NAME}-{}", std::process::id()));
    let placed = std::fs::copy(program, &new)
        // The other container may have another user.
        .and_then(|_| std::fs::set_permissions(&new, Permissions::from_mode(0o755)))
        .and_then(|()| std::fs::rename(&new, copy));
    if placed.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    placed
}
