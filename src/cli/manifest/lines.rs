//! Finds the line of a field in a YAML document. The document is deserialized again along
//! the field's path, and fails with an error at the field, which contains the position.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One step of a path.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

/// Returns the line, starting at 1, of the field at `path` (`spec.list[2].name`), or of
/// its closest existing parent.
pub(super) fn find(document: &str, path: &str) -> Option<usize> {
    let mut steps = steps(path);
    loop {
        let along = Along { steps: &steps };
        let error = along.deserialize(serde_yaml::Deserializer::from_str(document)).err();
        if let Some(error) = error.filter(|error| error.to_string().contains(FOUND)) {
            return error.location().map(|location| location.line());
        }
        steps.pop()?;
    }
}

fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let mut parts = part.split('[');
        steps.extend(
            parts.next().filter(|key| !key.is_empty()).map(|key| Step::Key(key.to_owned())),
        );
        let indices = parts.filter_map(|index| index.trim_end_matches(']').parse().ok());
        steps.extend(indices.map(Step::Index));
    }
    steps
}

/// Distinguishes this module's error from others.
const FOUND: &str = "the field that was looked for";

/// Deserializes along the path. Fails at the end of the path, and succeeds if the field
/// does not exist.
struct Along<'a> {
    steps: &'a [Step],
}

impl Along<'_> {
    /// Fails at the end of the path. Must be called within a visit, where the
    /// deserializer adds the position to the error.
    fn end<E: Error>(&self) -> Result<(), E> {
        if self.steps.is_empty() { Err(E::custom(FOUND)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Along<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Along<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.end()?;
        let Some((Step::Key(wanted), rest)) = self.steps.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == *wanted {
                map.next_value_seed(Along { steps: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.end()?;
        let Some((Step::Index(wanted), rest)) = self.steps.split_first() else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        for _ in 0..*wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        seq.next_element_seed(Along { steps: rest })?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.end()
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.end()
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.end()
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.end()
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.end()
    }
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.end()
    }
}
