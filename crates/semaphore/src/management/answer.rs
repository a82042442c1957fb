//! Reads an answer of the management API within limits: time, size, number of entries,
//! and the texts that are kept of an object. The address comes from a tenant's Secret, so
//! the server behind it may be anything. See `management` for the requests.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::marker::PhantomData;

use http_body_util::BodyExt;
use hyper::http::request::Builder;
use lockkeeper_plan::clean_text;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::http::{Client, REQUEST_TIMEOUT, no_answer, root_cause};

/// Maximum size of an answer, and of all pages of a list together, in bytes. A lock with
/// 10,000 slots has up to 30,000 queues besides those that clients declare. With the
/// longest names, a list of these names has 6.5 MiB.
pub const MAX_ANSWER: usize = 8 << 20;

/// Number of bytes of the limit that each part of an answer uses up at least. Reading a part
/// has a cost of its own, and a server may send its bytes one by one.
const LEAST_PART: usize = 64;

/// Answers up to this size in bytes are read without a concurrency limit.
const SMALL: usize = 256 << 10;

/// Maximum number of larger answers that a process reads concurrently. Further ones wait,
/// within their own time limit.
const LARGE_AT_ONCE: usize = 2;

static LARGE: Semaphore = Semaphore::const_new(LARGE_AT_ONCE);

/// Allows one large answer per API, so that a single server can't use up the process's
/// limit.
#[derive(Debug)]
pub struct Turn(Semaphore);

impl Default for Turn {
    fn default() -> Self {
        Self(Semaphore::const_new(1))
    }
}

/// Why there is no answer to read.
pub enum NoAnswer {
    /// The object or the path does not exist.
    NotFound,
    /// Any other reason, as text.
    Because(String),
}

/// Sends the request and reads the answer. `left` is the number of bytes allowed, and is
/// reduced by the number read.
pub async fn read<T: DeserializeOwned>(
    client: &Client,
    request: Builder,
    turn: &Turn,
    left: &mut usize,
) -> Result<T, NoAnswer> {
    match tokio::time::timeout(REQUEST_TIMEOUT, receive(client, request, turn, left)).await {
        Ok(answer) => answer,
        Err(_) => Err(NoAnswer::Because(no_answer())),
    }
}

async fn receive<T: DeserializeOwned>(
    client: &Client,
    request: Builder,
    turn: &Turn,
    left: &mut usize,
) -> Result<T, NoAnswer> {
    let sent = client.send_repeatedly(request).await;
    let mut answer = sent.map_err(|failed| NoAnswer::Because(failed.why))?;
    match answer.status().as_u16() {
        200 => {}
        404 => return Err(NoAnswer::NotFound),
        401 => {
            return Err(NoAnswer::Because(
                "it refuses the user: check user and password, and give the user the tag management".to_owned(),
            ));
        }
        status @ 300..=399 => {
            let why = format!(
                "it answers with status {status}, and redirects are not followed: set the URL that it redirects to"
            );
            return Err(NoAnswer::Because(why));
        }
        status => return Err(NoAnswer::Because(format!("it answers with status {status}"))),
    }
    let mut body = Body::default();
    let mut large: Option<[SemaphorePermit; 2]> = None;
    while let Some(frame) = answer.frame().await {
        let frame = frame.map_err(|error| NoAnswer::Because(root_cause(&error)))?;
        // Trailers say nothing.
        let Ok(chunk) = frame.into_data() else { continue };
        let cost = chunk.len().max(LEAST_PART);
        if cost > *left {
            return Err(NoAnswer::Because(format!(
                "its answer is longer than {} MiB, the limit: check that the URL is that of a RabbitMQ",
                MAX_ANSWER >> 20
            )));
        }
        *left -= cost;
        if body.length + chunk.len() > SMALL && large.is_none() {
            let stopped = |_| NoAnswer::Because("the process is stopping".to_owned());
            let own = turn.0.acquire().await.map_err(stopped)?;
            large = Some([own, LARGE.acquire().await.map_err(stopped)?]);
        }
        body.extend(&chunk);
    }
    let parsed = serde_json::from_reader(body);
    parsed.map_err(|error| NoAnswer::Because(format!("its answer can't be read: {error}")))
}

/// The bytes of an answer, in blocks. A single large buffer would be copied to grow, and
/// the allocator keeps it for each thread that ever had one. Blocks are filled, because a
/// server may send its bytes one by one.
#[derive(Default)]
struct Body {
    blocks: VecDeque<Vec<u8>>,
    length: usize,
    /// Number of bytes read into the first block.
    read: usize,
}

impl Body {
    const BLOCK: usize = 64 << 10;

    fn extend(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len();
        while !bytes.is_empty() {
            let full = |block: &Vec<u8>| block.len() == Self::BLOCK;
            if self.blocks.back().is_none_or(full) {
                self.blocks.push_back(Vec::with_capacity(Self::BLOCK));
            }
            let Some(block) = self.blocks.back_mut() else { return };
            let (fits, rest) = bytes.split_at(bytes.len().min(Self::BLOCK - block.len()));
            block.extend_from_slice(fits);
            bytes = rest;
        }
    }
}

impl io::Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(block) = self.blocks.front() {
            let count = io::Read::read(&mut block.get(self.read..).unwrap_or_default(), into)?;
            if count > 0 || into.is_empty() {
                self.read += count;
                return Ok(count);
            }
            self.blocks.pop_front();
            self.read = 0;
        }
        Ok(0)
    }
}

/// A list of at most `MOST` entries. Longer lists are an error. Entries may take far more
/// memory than their text.
pub struct List<T, const MOST: usize>(pub Vec<T>);

impl<T, const MOST: usize> Default for List<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for List<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Entries<T, MOST> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    if entries.len() >= MOST {
                        return Err(serde::de::Error::invalid_length(MOST + 1, &self));
                    }
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_seq(Entries::<T, MOST>(PhantomData)).map(List)
    }
}

/// Keys whose texts are kept.
const KEPT: [&str; 9] = [
    "name",
    "connection_name",
    "value",
    "x-priority",
    "x-lockkeeper-id",
    "x-lockkeeper-identity",
    "x-lockkeeper-reason",
    "x-lockkeeper-since",
    "x-lockkeeper-url",
];

/// Maximum length of a kept text, in bytes. No more of it is displayed anywhere.
const MAX_KEPT: usize = 512;

/// The relevant texts and whole numbers of an object. A value that is not an object has
/// none: the API sends an empty list instead of an empty object.
#[derive(Clone, Debug, Default)]
pub struct Texts(Vec<(&'static str, String)>);

impl Texts {
    /// Returns the text of that key, if there is one.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (_, text) = self.0.iter().find(|(known, _)| *known == key)?;
        Some(text)
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(key) = object.next_key::<String>()? {
                    match KEPT.into_iter().find(|kept| *kept == key) {
                        Some(kept) if texts.len() < KEPT.len() => {
                            let Text(text) = object.next_value()?;
                            texts.extend(text.map(|text| (kept, text)));
                        }
                        _ => drop(object.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Texts(texts))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Texts::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<Texts, E> {
                Ok(Texts::default())
            }

            fn visit_unit<E>(self) -> Result<Texts, E> {
                Ok(Texts::default())
            }
        }

        deserializer.deserialize_any(Object)
    }
}

/// A text or a whole number. `None` for any other value.
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Some(clean_text(text, MAX_KEPT))))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Text, A::Error> {
                while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Text, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(Some(number.to_string())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(Some(number.to_string())))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Text, E> {
                Ok(Text(None))
            }

            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text(None))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_known_texts_of_an_object_and_passes_over_the_rest() {
        let texts = |json: &str| serde_json::from_str::<Texts>(json).unwrap();
        let written = texts(
            r#"{"x-max-length":0,"x-priority":7,"x-lockkeeper-id":"a\"b","x-lockkeeper-url":[1,{"a":2}],
                "name":{"deep":[true,null,1.5,-1]},"other":"text"}"#,
        );
        assert_eq!(written.get("x-lockkeeper-id"), Some("a\"b"));
        assert_eq!(written.get("x-priority"), Some("7"));
        assert_eq!(written.0.len(), 2, "{written:?}");
        for empty in ["[]", "{}", "null", "\"\"", "[{\"name\":\"x\"}]"] {
            assert_eq!(texts(empty).get("name"), None, "{empty}");
        }
        let long = texts(&format!(r#"{{"name":"{}"}}"#, "é".repeat(1000)));
        // Truncated between two characters.
        assert_eq!(long.get("name").map(str::len), Some(511));
    }

    #[test]
    fn refuses_a_list_with_more_entries_than_asked_for() {
        let list = |json: &str| serde_json::from_str::<List<u8, 3>>(json).map(|list| list.0);
        assert_eq!(list("[1,2,3]").unwrap(), [1, 2, 3]);
        let error = list("[1,2,3,4]").unwrap_err().to_string();
        assert!(error.contains("a list of at most 3 entries"), "{error}");
    }

    #[test]
    fn an_answer_is_read_as_it_was_received_whatever_its_parts() {
        let numbers: Vec<u32> = (0..50_000).collect();
        let text = serde_json::to_vec(&numbers).unwrap();
        for part in [1, 1000, Body::BLOCK, text.len()] {
            let mut body = Body::default();
            text.chunks(part).for_each(|part| body.extend(part));
            assert_eq!(body.length, text.len());
            let read: Vec<u32> = serde_json::from_reader(body).unwrap();
            assert_eq!(read, numbers, "{part}");
        }
    }

    #[test]
    fn the_largest_lock_fits_into_the_largest_answer() {
        // A, B or C, and F of 10,000 slots, with a name of 200 bytes.
        let entry = serde_json::json!({"name": format!("{}-10000-A", "n".repeat(200))});
        assert!((entry.to_string().len() + 1) * 3 * 10_000 < MAX_ANSWER);
    }
}
