//! The resource that a lock guards in a test: a place for each slot, with room for one
//! holder. A second holder that enters while the first is there is an error that every
//! lock must prevent. It is in the file system, so that processes in any language can
//! participate: entering creates the directory `<register>/<slot>`, leaving removes it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The register; removed when dropped.
pub struct Register {
    folder: PathBuf,
    entries: AtomicUsize,
}

/// A holder in its place. Leaves when dropped.
pub struct Entered(PathBuf);

impl Register {
    /// Creates an empty register.
    pub fn create() -> Self {
        let name = format!("register-{}", super::rabbitmq::unique());
        let folder = crate::built::scratch().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self { folder, entries: AtomicUsize::new(0) }
    }

    /// Returns its directory, for programs that participate.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Enters as the holder of `slot`, or of the token with this id. Panics if another
    /// holder is there.
    pub fn enter(&self, slot: impl Into<u64>) -> Entered {
        let slot: u64 = slot.into();
        let place = self.folder.join(slot.to_string());
        match std::fs::create_dir(&place) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                panic!("slot {slot} has two holders")
            }
            Err(error) => panic!("{error}"),
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        Entered(place)
    }

    /// Returns how often this process has entered.
    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
