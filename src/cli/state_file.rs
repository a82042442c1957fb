//! The file by which the later steps of a pipeline find the hold of an earlier one. `hold
//! --background` creates and updates it; `verify` and `release` read it. See `asking` for the
//! sockets that it names.
//!
//! A file is trusted only if it is a regular one of this user. Another user's could name a
//! socket that reports a lock as held although no client holds it. It contains no secret.

mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

pub(super) use self::record::{Process, Record, State, release_socket};
use super::failure::Failure;
use super::shell::quoted;

/// Starts of the answers to a request to release. A text about the lock follows.
pub(super) const RELEASED: &str = "released ";
pub(super) const LOST: &str = "lost ";

/// Maximum length of a file. A longer one is not of this program.
const MAX_LENGTH: u64 = 64 * 1024;

/// Maximum number of files of ended holds to replace, if others replace them too.
const ATTEMPTS: usize = 3;

/// The file of the hold of this process. Removed when dropped, unless the lock was held.
pub(super) struct StateFile {
    path: PathBuf,
    record: Mutex<Record>,
}

impl StateFile {
    /// Creates the file before the lock is acquired. Replaces that of a hold that has ended.
    pub fn create(path: &Path, socket: &str) -> Result<Self, Failure> {
        let unwritable = |error: io::Error| {
            let message = format!("--state {} can't be written: {error}", quoted(path));
            Failure::new(Failure::CANT_CREATE, message)
        };
        let record = Mutex::new(Record::waiting(socket));
        let file = Self { path: std::path::absolute(path).map_err(unwritable)?, record };
        for _ in 0..ATTEMPTS {
            match private().open(&file.path) {
                Ok(_) => {
                    // It is ours, and still empty: its contents appear all at once.
                    if let Err(error) = file.write(&file.lock()) {
                        let _ = fs::remove_file(&file.path);
                        return Err(unwritable(error));
                    }
                    return Ok(file);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    remove_ended(path).map_err(|failure| match failure {
                        Refusal::Io(error) => unwritable(error),
                        Refusal::Failure(failure) => failure,
                    })?;
                }
                Err(error) => return Err(unwritable(error)),
            }
        }
        Err(unwritable(ErrorKind::ResourceBusy.into()))
    }

    /// Changes the record and writes it, unless the file was removed or replaced.
    pub fn update(&self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut record = self.lock();
        change(&mut record);
        if !self.is_own(&record) {
            return Err(io::Error::new(ErrorKind::NotFound, "it was removed"));
        }
        self.write(&record)
    }

    /// Removes the file, unless it was replaced.
    pub fn remove(&self) {
        if self.is_own(&self.lock()) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Returns its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_own(&self, record: &Record) -> bool {
        Found::open(&self.path).is_ok_and(|found| found.record.socket == record.socket)
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_string_pretty(record)?;
        let new = self.path.with_file_name(format!(".{}", record.socket));
        let written = private().open(&new).and_then(|mut file| {
            file.write_all(format!("{text}\n").as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let is_waiting = self.lock().state == State::Waiting;
        if is_waiting {
            self.remove();
        }
    }
}

/// Options for a new file that only this user can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
}

/// Why the file of another hold is not replaced.
enum Refusal {
    Io(io::Error),
    Failure(Failure),
}

/// Removes the file of a hold that has ended. Does nothing if the file is gone.
fn remove_ended(path: &Path) -> Result<(), Refusal> {
    let found = match Found::open(path) {
        Ok(found) => found,
        Err(failure) if failure.code == Failure::DOES_NOT_EXIST => return Ok(()),
        Err(failure) => return Err(Refusal::Failure(failure)),
    };
    let (record, file) = (&found.record, quoted(path));
    let message = match record.connect(&record.socket) {
        Process::Ended => return found.remove(path).map_err(Refusal::Io),
        Process::Here(_) | Process::Silent(_) => format!(
            "{file} is of a hold that has not ended (process {}): end it by lockkeeper release --state {file}, or use another file",
            record.pid
        ),
        Process::Elsewhere => format!(
            "{file} is of another hold, and {}: remove it if that hold has ended, or use another file",
            record.elsewhere()
        ),
    };
    Err(Refusal::Failure(Failure::new(Failure::ALREADY_EXISTS, message)))
}

/// A file that exists.
pub(super) struct Found {
    file: File,
    pub record: Record,
}

impl Found {
    /// Opens and reads the file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let text = "does not exist: the lock was released before, or never held";
                let message = format!("{} {text}", quoted(path));
                Failure::new(Failure::DOES_NOT_EXIST, message)
            }
            _ => unusable(path, &error.to_string()),
        })?;
        let metadata = file.metadata().map_err(|error| unusable(path, &error.to_string()))?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            let why = "it must be a regular file of the user that runs this command";
            return Err(unusable(path, why));
        }
        let mut text = String::new();
        let read = (&file).take(MAX_LENGTH).read_to_string(&mut text);
        read.map_err(|error| unusable(path, &error.to_string()))?;
        let record = serde_json::from_str(&text)
            .map_err(|_| unusable(path, "lockkeeper hold did not write it"))?;
        Ok(Self { file, record })
    }

    /// Removes the file, unless it was replaced since.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        // One process at a time, so that none removes the file that another has just created.
        self.file.lock()?;
        let opened = self.file.metadata()?;
        match fs::symlink_metadata(path) {
            Ok(now) if (now.dev(), now.ino()) == (opened.dev(), opened.ino()) => {
                fs::remove_file(path)
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn unusable(path: &Path, why: &str) -> Failure {
    Failure::new(Failure::USAGE, format!("{} can't be used: {why}", quoted(path)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cli::asking::Socket;

    /// Returns the exit code and message of the refusal to use the file.
    fn refused(path: &Path) -> (u8, String) {
        let failure = StateFile::create(path, "lockkeeper-of-a-test").err().unwrap();
        (failure.code, failure.message.unwrap())
    }

    fn write(path: &Path, change: impl FnOnce(&mut Record)) {
        let mut record = Record::waiting("lockkeeper-of-an-ended-process");
        record.state = State::Held;
        change(&mut record);
        fs::write(path, serde_json::to_string(&record).unwrap()).unwrap();
    }

    #[tokio::test]
    async fn a_file_is_replaced_only_if_its_hold_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's state");
        let socket = Socket::listen().unwrap();
        let file = StateFile::create(&path, socket.name()).unwrap();
        let (code, message) = refused(&path);
        assert_eq!(code, Failure::ALREADY_EXISTS);
        assert!(message.contains("lockkeeper release --state '"), "{message}");
        file.update(|record| record.state = State::Held).unwrap();
        drop(file);
        assert_eq!(refused(&path).0, Failure::ALREADY_EXISTS, "it is held");
        drop(socket);
        drop(StateFile::create(&path, "lockkeeper-of-a-test").unwrap());
        assert!(!path.exists(), "a lock that was never held leaves no file");

        write(&path, |record| record.place.network_namespace = "net:[1]".to_owned());
        let (code, message) = refused(&path);
        assert_eq!(code, Failure::ALREADY_EXISTS);
        assert!(message.contains("in another container"), "{message}");
        write(&path, |record| record.place.boot_id = "of an earlier boot".to_owned());
        drop(StateFile::create(&path, "lockkeeper-of-a-test").unwrap());
        let rest: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert!(rest.is_empty(), "{rest:?}");
    }

    #[tokio::test]
    async fn of_many_holds_that_replace_one_file_only_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for _ in 0..20 {
            write(&path, |_| ());
            let starts = (0..8).map(|_| {
                let path = path.clone();
                tokio::task::spawn_blocking(move || {
                    let socket = Socket::listen().unwrap();
                    StateFile::create(&path, socket.name()).map(|file| (socket, file))
                })
            });
            let results = futures::future::join_all(starts.collect::<Vec<_>>()).await;
            let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
            drop(results);
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn only_a_regular_file_of_this_user_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("real"), |_| ());
        symlink(path("real"), path("link")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("foreign"), "{\"state\": \"held\"}").unwrap();
        fs::write(path("empty"), "").unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let mut names = vec!["link", "folder", "foreign", "empty", "pipe"];
        if geteuid().is_root() {
            write(&path("other"), |_| ());
            let other = Some(nix::unistd::Uid::from_raw(12345));
            nix::unistd::chown(&path("other"), other, None).unwrap();
            names.push("other");
        }
        for name in names {
            let (code, message) = refused(&path(name));
            assert_eq!(code, Failure::USAGE, "{name}: {message}");
            assert!(path(name).exists());
        }
    }

    #[tokio::test]
    async fn a_file_that_was_replaced_is_left_to_the_other_hold() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let file = StateFile::create(&path, "lockkeeper-of-a-test").unwrap();
        let found = Found::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(file.update(|record| record.state = State::Held).is_err());
        write(&path, |_| ());
        assert!(file.update(|_| ()).is_err());
        file.remove();
        found.remove(&path).unwrap();
        assert_eq!(Found::open(&path).unwrap().record.socket, "lockkeeper-of-an-ended-process");
    }
}
