//! Quotes words for commands that messages print, so that a user can paste them into a
//! shell.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use lockkeeper_plan::changes_display;

/// Quotes a word for a shell, if it needs that. Control and invisible characters, and bytes
/// that are not UTF-8, become escapes of bash, so that the message stays text.
pub(super) fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@%+=".contains(c);
    match word.to_str() {
        // A tilde or an equals sign at the start has a meaning of its own.
        Some(text) if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain) => {
            text.to_owned()
        }
        Some(text) if !text.contains(changes_display) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => escaped(word.as_bytes()),
    }
}

/// Joins words to a command, each quoted.
pub(super) fn command<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::from("$'");
    for &byte in bytes {
        let _ = match byte {
            b'\'' | b'\\' => write!(text, "\\{}", char::from(byte)),
            b' '..=b'~' => write!(text, "{}", char::from(byte)),
            _ => write!(text, "\\x{byte:02x}"),
        };
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn plain_words_are_printed_as_they_are() {
        for word in ["frames", "pq/frames", "-n", "--db", "redis://h:1/2", "a.b_c-d@e"] {
            assert_eq!(quoted(word), word);
        }
    }

    #[test]
    fn a_shell_reads_every_word_as_it_was() {
        let words: [&[u8]; 14] = [
            b"",
            b"it's",
            b"a b",
            b"$(true)",
            b"`x`",
            b"*",
            b"~",
            b"=x",
            b"\"",
            b"\\",
            b"a\nb",
            b"\xff\xfe1",
            b"{a,b}",
            "ü€".as_bytes(),
        ];
        for word in words {
            let word = OsStr::from_bytes(word);
            let line = format!("printf %s {}", quoted(word));
            let printed = Command::new("bash").args(["-c", &line]).output().unwrap();
            assert_eq!(OsStr::from_bytes(&printed.stdout), word, "{line}");
        }
    }
}
