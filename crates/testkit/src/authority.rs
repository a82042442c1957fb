//! Certificates made for a test with openssl: an authority, and the certificates that it
//! signs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn random() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// A test's authority, in its own directory.
pub struct Authority(PathBuf);

impl Authority {
    /// Creates an authority with a name of its own.
    #[expect(clippy::new_without_default, reason = "it creates files")]
    pub fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("lockkeeper-ca-{}", random()));
        std::fs::create_dir(&directory).unwrap();
        let authority = Self(directory);
        // Two authorities with the same name would only differ by their signatures.
        authority.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
             -subj /CN=authority-{} -keyout ca.key -out ca.crt",
            random()
        ));
        authority.remember("ca.key");
        authority
    }

    /// Creates `NAME.crt` and `NAME.key` for these subject alternative names.
    pub fn sign(&self, name: &str, names: &str) {
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} \
             -addext subjectAltName={names} -keyout {name}.key -out {name}.csr",
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
             -copy_extensions copy -out {name}.crt",
        ));
        self.remember(&format!("{name}.key"));
    }

    /// Records the key for the checks of the whole run: it must not be shown anywhere.
    fn remember(&self, name: &str) {
        let file = File::options().create(true).append(true).open(keys_file());
        file.unwrap().write_all(self.text(name).as_bytes()).unwrap();
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(&self.0);
        let output = command.output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the path of one of its files: `ca.crt`, or `NAME.crt` and `NAME.key`.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    /// Returns the content of one of its files.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(Path::new(&self.file(name))).unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns every private key that tests have created for these servers, as PEM.
pub(crate) fn private_keys() -> Vec<String> {
    let all = std::fs::read_to_string(keys_file()).unwrap_or_default();
    all.split_inclusive("-----END PRIVATE KEY-----\n").map(ToOwned::to_owned).collect()
}

fn keys_file() -> PathBuf {
    let directory = std::env::var("LOCKKEEPER_DEV_DIR").expect("`. target/test/env`");
    Path::new(&directory).join("private-keys-of-tests")
}
