//! Counts the bytes of each answer of a Redis server, so that no server can fill this
//! process's memory. Follows the framing only (RESP); the redis crate
//! parses. Pure; see `flow` for the connection.

/// Maximum size of an answer before the login is complete, in bytes. Any server of any
/// tenant is asked this far.
pub(super) const BEFORE_LOGIN: usize = 64 * 1024;

/// Maximum length of a line. Lines are short: only a bulk has data.
const LONGEST_LINE: usize = 64 * 1024;

/// Maximum nesting of an answer. The redis crate rejects more than 100 levels.
const MAX_DEPTH: usize = 64;

/// What each value counts in addition to its bytes: about the size of a parsed value.
const VALUE: usize = 64;

/// Why a connection ends: the server sent what no Redis sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("it sent bytes that are no answer of a Redis server")]
    NotRedis,
    #[error("it sent an answer of more than {0} bytes")]
    TooLong(usize),
    #[error("it sent an answer that is nested too deeply")]
    TooDeep,
}

/// The answers on one connection.
#[derive(Default)]
pub(super) struct Answers {
    part: Part,
    /// Number of missing values of each array that is being read, outermost first.
    open: Vec<u64>,
    /// Bytes of the current answer, and [`VALUE`] for each value.
    len: usize,
}

enum Part {
    /// The line that begins a value.
    Line(Vec<u8>),
    /// This number of bytes of a bulk, and the end of its line.
    Bulk(u64),
}

impl Default for Part {
    fn default() -> Self {
        Self::Line(Vec::new())
    }
}

impl Answers {
    /// Follows these bytes. Fails if an answer takes more memory than `limit`, in bytes.
    pub(super) fn follow(&mut self, mut bytes: &[u8], limit: usize) -> Result<(), Violation> {
        while !bytes.is_empty() {
            let taken = match &mut self.part {
                Part::Bulk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    taken
                }
                Part::Line(line) => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    let taken = end.map_or(bytes.len(), |end| end + 1);
                    if line.len() + taken > LONGEST_LINE {
                        return Err(Violation::TooLong(LONGEST_LINE));
                    }
                    line.extend_from_slice(&bytes[..taken]);
                    taken
                }
            };
            bytes = &bytes[taken..];
            self.len += taken;
            self.check(limit)?;
            self.advance()?;
            self.check(limit)?;
        }
        Ok(())
    }

    fn check(&self, limit: usize) -> Result<(), Violation> {
        if self.len > limit { Err(Violation::TooLong(limit)) } else { Ok(()) }
    }

    /// Continues with the next part if this one is complete.
    fn advance(&mut self) -> Result<(), Violation> {
        match &self.part {
            Part::Bulk(0) => {
                self.part = Part::default();
                self.value_ended();
            }
            Part::Line(line) if line.ends_with(b"\n") => {
                let (kind, rest) = line.split_first().ok_or(Violation::NotRedis)?;
                let (kind, number) = (*kind, number(rest));
                self.part = Part::default();
                self.begin(kind, number)?;
            }
            Part::Line(line) => match line.first() {
                Some(kind) if !KINDS.contains(kind) => return Err(Violation::NotRedis),
                _ => {}
            },
            Part::Bulk(_) => {}
        }
        Ok(())
    }

    /// Begins the value whose first line is complete.
    fn begin(&mut self, kind: u8, number: Option<u64>) -> Result<(), Violation> {
        self.len += VALUE;
        let inner = match kind {
            b'$' | b'=' | b'!' => {
                match number {
                    Some(len) => self.part = Part::Bulk(len.saturating_add(2)),
                    None => self.value_ended(),
                }
                return Ok(());
            }
            b'*' | b'~' => number.unwrap_or(0),
            b'%' => number.unwrap_or(0).saturating_mul(2),
            // Attributes precede a value.
            b'|' => number.unwrap_or(0).saturating_mul(2).saturating_add(1),
            _ if KINDS.contains(&kind) => 0,
            _ => return Err(Violation::NotRedis),
        };
        if inner == 0 {
            self.value_ended();
        } else if self.open.len() == MAX_DEPTH {
            return Err(Violation::TooDeep);
        } else {
            self.open.push(inner);
        }
        Ok(())
    }

    fn value_ended(&mut self) {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
        self.len = 0;
    }
}

/// The first bytes of values. Pushes (`>`) are not among them: no server sends them in the
/// version of the protocol that we ask for, and endless ones would look like progress.
const KINDS: &[u8] = b"+-:_#,($=!*~%|";

/// Returns the number of a line. `None` for a null value, whose number is negative.
fn number(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1100;

    fn follow(answers: &mut Answers, bytes: &[u8]) -> Result<(), Violation> {
        answers.follow(bytes, LIMIT)
    }

    #[test]
    fn each_answer_is_counted_on_its_own() {
        let mut answers = Answers::default();
        let bulk = [b"$900\r\n", &[b'\n'; 900][..], b"\r\n"].concat();
        let list = b"*3\r\n:1\r\n*2\r\n$-1\r\n+OK\r\n*0\r\n";
        let map = b"%1\r\n+k\r\n|1\r\n+a\r\n+b\r\n_\r\n";
        let set = b"~2\r\n$1\r\nx\r\n#t\r\n";
        for _ in 0..10 {
            for answer in [&bulk[..], list, map, set, b"-ERR no\r\n", b"*-1\r\n"] {
                assert_eq!(follow(&mut answers, answer), Ok(()));
                assert_eq!(answers.len, 0, "{}", String::from_utf8_lossy(answer));
            }
        }
    }

    #[test]
    fn an_answer_beyond_the_limit_ends_the_connection() {
        let violation = |bytes: &[u8]| follow(&mut Answers::default(), bytes).unwrap_err();
        let endless = |begin: &str, next: &str| [begin, &next.repeat(LIMIT)].concat();
        for (begin, next) in [
            ("$99999999999\r\n", "x"),
            ("*99999999999\r\n", ":1\r\n"),
            ("*2\r\n+OK\r\n$5000\r\n", "xxxxxx"),
            ("%18446744073709551615\r\n", "+k\r\n"),
            ("+", "x"),
            ("-ERR ", "x"),
        ] {
            assert_eq!(
                violation(endless(begin, next).as_bytes()),
                Violation::TooLong(LIMIT),
                "{begin}"
            );
        }
        let long = [b"+", &b"x".repeat(LONGEST_LINE)[..]].concat();
        let end = Answers::default().follow(&long, usize::MAX);
        assert_eq!(end, Err(Violation::TooLong(LONGEST_LINE)));
        let nested = "*1\r\n".repeat(100);
        let end = Answers::default().follow(nested.as_bytes(), usize::MAX);
        assert_eq!(end, Err(Violation::TooDeep));
        assert_eq!(violation(b"HTTP/1.1 400 Bad Request\r\n"), Violation::NotRedis);
        assert_eq!(violation(b">2\r\n+invalidate\r\n"), Violation::NotRedis);
        assert_eq!(violation(b"\x15\x03\x01\x00\x02"), Violation::NotRedis);
    }

    proptest! {
        #[test]
        fn how_bytes_arrive_makes_no_difference(
            bytes in vec(prop_oneof![
                "[-+:$*%~|]-?[0-9]{1,4}\r\n".prop_map(String::into_bytes),
                vec(any::<u8>(), 0..8),
            ], 0..30),
            cut in 1..50_usize,
        ) {
            let bytes = bytes.concat();
            let (mut whole, mut parts) = (Answers::default(), Answers::default());
            let at_once = follow(&mut whole, &bytes);
            let cut = bytes.chunks(cut).try_for_each(|part| follow(&mut parts, part));
            prop_assert_eq!(at_once.is_ok(), cut.is_ok());
        }
    }
}
