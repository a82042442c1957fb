//! Writes the files of a report: `run.jsonl`, `report.json`, and an SVG picture of each
//! violation that is printed. See `text` for the printed report.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{PICTURE, Report};
use crate::history::{History, HistoryError};

/// The recorded run, which the subcommand `check` reads.
pub const RUN: &str = "run.jsonl";
/// The report, as JSON.
pub const REPORT: &str = "report.json";

/// Error of writing a file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct DirectoryError {
    /// The file.
    pub file: PathBuf,
    /// The reason.
    pub why: HistoryError,
}

/// Writes a report and its history to a directory. Creates the directory if it does not exist,
/// and replaces the files of an earlier report.
///
/// # Errors
///
/// [`DirectoryError`] with the first file that could not be written.
pub fn write(directory: &Path, history: &History, report: &Report) -> Result<(), DirectoryError> {
    let failed = |file: &Path| {
        let file = file.to_owned();
        move |why: HistoryError| DirectoryError { file, why }
    };
    let io = |file: &Path| {
        let failed = failed(file);
        move |why: io::Error| failed(why.into())
    };
    fs::create_dir_all(directory).map_err(io(directory))?;
    remove_pictures(directory).map_err(io(directory))?;
    for picture in &report.pictures {
        let file = directory.join(&picture.file);
        fs::write(&file, &picture.svg).map_err(io(&file))?;
    }
    let file = directory.join(REPORT);
    let json = serde_json::to_string_pretty(report).map_err(io::Error::from).map_err(io(&file))?;
    fs::write(&file, json + "\n").map_err(io(&file))?;
    // `check` may have read its input from this file.
    let (file, new) = (directory.join(RUN), directory.join("run.jsonl.new"));
    let mut to = BufWriter::new(File::create(&new).map_err(io(&new))?);
    history.write(&mut to).map_err(failed(&new))?;
    to.flush().map_err(io(&new))?;
    fs::rename(&new, &file).map_err(io(&file))
}

/// Removes the pictures of an earlier report.
fn remove_pictures(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with(PICTURE.0) && name.ends_with(PICTURE.1) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
