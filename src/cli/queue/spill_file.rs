//! Saves elements to a file that were taken, but could neither be written nor returned to
//! their queue.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::cli::shell::{command, quoted};
use crate::cli::target::QueueTarget;

/// Saves elements to a file in the current directory, or in the directory for temporary
/// files. Returns a description of how to put them into a queue again.
pub(super) fn save(queue: &QueueTarget, elements: &[Vec<u8>]) -> io::Result<String> {
    let whole = |separator: u8| !elements.iter().any(|element| element.contains(&separator));
    let separator = [b'\n', 0].into_iter().find(|separator| whole(*separator));
    let Some(separator) = separator else { return save_each(queue, elements) };
    let (path, mut file) = create("")?;
    for element in elements {
        file.write_all(element)?;
        file.write_all(&[separator])?;
    }
    file.sync_all()?;
    let put = put(queue, if separator == 0 { &["-0"] } else { &[] }, &path);
    Ok(format!("saved in {}; {put} puts them{}", quoted(&path), queue.needs()))
}

/// Saves each element to a file of its own, if no separator is suitable.
fn save_each(queue: &QueueTarget, elements: &[Vec<u8>]) -> io::Result<String> {
    let mut commands = format!("saved, each in a file, which puts it{}:", queue.needs());
    for (number, element) in elements.iter().enumerate() {
        let (path, mut file) = create(&format!("-{number:04}"))?;
        file.write_all(element)?;
        file.sync_all()?;
        let _ = write!(commands, "\n  {}", put(queue, &["--size", "512M"], &path));
    }
    Ok(commands)
}

/// Returns the command that puts the elements of this file, for a shell.
fn put(queue: &QueueTarget, options: &[&str], file: &Path) -> String {
    let words = ["lockkeeper", "queue", "put"].iter().chain(options).chain(&["--keep-open"]);
    let words = words.map(|word| (*word).to_owned()).chain(queue.arguments());
    format!("{} <{}", command(words), quoted(file))
}

/// Creates a file that only this user can read.
fn create(suffix: &str) -> io::Result<(PathBuf, File)> {
    let now = jiff::Timestamp::now().as_nanosecond();
    let name = format!("lockkeeper-{}-{now}{suffix}.elements", std::process::id());
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let here = std::env::current_dir().unwrap_or_default().join(&name);
    match options.open(&here) {
        Ok(file) => Ok((here, file)),
        Err(_) => {
            let there = std::env::temp_dir().join(&name);
            let file = options.open(&there)?;
            Ok((there, file))
        }
    }
}
