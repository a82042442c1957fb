//! Reads the text of a file into values, by the rules of the API server and kubectl: YAML
//! 1.1 scalars as in go-yaml, documents, JSON streams. The YAML library reads YAML 1.2, so
//! the plain scalars that the two versions read differently are resolved here.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::Value;
use serde_yaml::Mapping;
use serde_yaml::value::{Number, Value as Yaml};

/// A byte order mark, which some Windows editors write. Concatenated files have more than
/// one.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns the documents of a file, each with the number of its first line.
pub(super) fn documents(text: &str) -> Vec<(usize, &str)> {
    if let Some(objects) = objects(text) {
        return objects;
    }
    let mut documents = Vec::new();
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // At the start of a line, `---` is a document marker in any context.
        if line.strip_prefix("---").is_some_and(|rest| rest.trim_start() != rest || rest.is_empty())
        {
            if at > start {
                documents.push((start_line, &text[start..at]));
            }
            (start, start_line) = (at, number + 1);
        }
        at += line.len();
    }
    documents.push((start_line, &text[start..]));
    for (_, document) in &mut documents {
        *document = document.trim_start_matches(BYTE_ORDER_MARK);
    }
    documents
}

/// Returns the objects of a file that is a stream of JSON objects.
fn objects(text: &str) -> Option<Vec<(usize, &str)>> {
    if !text.starts_with(|first: char| first == '{' || first.is_whitespace()) {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut objects, mut start) = (Vec::new(), 0);
    while let Some(object) = stream.next() {
        object.ok()?;
        let blank = text[start..].len() - text[start..].trim_start().len();
        let line = text[..start + blank].matches('\n').count() + 1;
        let object = &text[start + blank..stream.byte_offset()];
        objects.push((line, object));
        start = stream.byte_offset();
    }
    objects.iter().all(|(_, object)| object.starts_with('{')).then_some(objects)
}

/// Reads one document.
pub(super) fn parse(document: &str) -> Result<Value, serde_yaml::Error> {
    let mut json = serde_json::Deserializer::from_str(document);
    if let Ok(value) = Reader::new(&Scalars::default()).deserialize(&mut json)
        && json.end().is_ok()
    {
        return json_of(&value);
    }
    // Each pass stops at one more scalar that is ambiguous, to look at its position.
    let mut plain = Vec::new();
    loop {
        let scalars = Scalars { plain: Some(&plain), next: Cell::new(0) };
        let yaml = serde_yaml::Deserializer::from_str(document);
        match Reader::new(&scalars).deserialize(yaml) {
            Ok(mut value) => {
                value.apply_merge()?;
                return json_of(&value);
            }
            Err(error) if scalars.next.get() > plain.len() => {
                let at = error.location().map(|location| location.index());
                plain.push(at.is_some_and(|at| is_plain(document, at)));
            }
            Err(error) => return Err(error),
        }
    }
}

fn json_of(value: &Yaml) -> Result<Value, serde_yaml::Error> {
    serde_json::to_value(value).map(whole).map_err(|error| Error::custom(error.to_string()))
}

/// Converts floats without a fraction to integers, as in kubectl's JSON.
fn whole(value: Value) -> Value {
    /// Up to this value, floats represent every integer exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => match number.as_f64() {
            #[allow(clippy::cast_possible_truncation, reason = "it has no fraction and is small")]
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
                Value::from(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(whole).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, whole(value))).collect())
        }
        other => other,
    }
}

/// Returns whether the scalar at a position, counted in bytes, is plain: neither quoted
/// nor a block, and without a tag.
fn is_plain(document: &str, at: usize) -> bool {
    let mut scalar = document.get(at..).unwrap_or_default();
    if scalar.starts_with('&') {
        let end = scalar.find(char::is_whitespace).unwrap_or(scalar.len());
        scalar = scalar[end..].trim_start();
    }
    !scalar.starts_with(['"', '\'', '|', '>', '!'])
}

/// Returns the value of a plain scalar that the YAML library reads as text, and go-yaml
/// does not.
fn resolve(text: &str) -> Option<Yaml> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Yaml::Bool(true)),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Yaml::Bool(false)),
        _ if text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) => {}
        _ => return None,
    }
    let text = text.replace('_', "");
    let number = integer(&text).or_else(|| float(&text));
    number.map(Yaml::Number)
}

fn integer(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let small = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok().map(Number::from);
    small.or_else(|| {
        let unsigned = !text.starts_with(['+', '-']);
        unsigned.then(|| u64::from_str_radix(digits, radix).ok().map(Number::from)).flatten()
    })
}

fn float(text: &str) -> Option<Number> {
    let of_a_float = |c: char| c.is_ascii_digit() || ".eE+-".contains(c);
    let float: f64 = text.chars().all(of_a_float).then(|| text.parse().ok()).flatten()?;
    float.is_finite().then(|| Number::from(float))
}

/// The ambiguous scalars of a document, in its order.
#[derive(Default)]
struct Scalars<'a> {
    /// Whether each is plain, as far as known. `None`: in JSON none is.
    plain: Option<&'a [bool]>,
    /// The number of the next one.
    next: Cell<usize>,
}

/// Reads a value, or a key of a mapping.
struct Reader<'a> {
    scalars: &'a Scalars<'a>,
    is_key: bool,
}

impl<'a> Reader<'a> {
    fn new(scalars: &'a Scalars<'a>) -> Self {
        Self { scalars, is_key: false }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Yaml;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }
    fn visit_none<E: Error>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Yaml, E> {
        Ok(Yaml::Bool(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Yaml, E> {
        Ok(Yaml::Number(value.into()))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Yaml, E> {
        Ok(Yaml::Number(value.into()))
    }
    #[allow(clippy::cast_precision_loss, reason = "as in go-yaml")]
    fn visit_i128<E: Error>(self, value: i128) -> Result<Yaml, E> {
        self.visit_f64(value as f64)
    }
    #[allow(clippy::cast_precision_loss, reason = "as in go-yaml")]
    fn visit_u128<E: Error>(self, value: u128) -> Result<Yaml, E> {
        self.visit_f64(value as f64)
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Yaml, E> {
        if !value.is_finite() && !self.is_key {
            return Err(E::custom(format!(
                "{} is no number in JSON: write a finite number",
                Number::from(value)
            )));
        }
        Ok(Yaml::Number(value.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Yaml, E> {
        let text_itself = || Yaml::String(text.to_owned());
        let Some(plain) = self.scalars.plain else { return Ok(text_itself()) };
        let Some(value) = resolve(text) else { return Ok(text_itself()) };
        let number = self.scalars.next.get();
        self.scalars.next.set(number + 1);
        match plain.get(number) {
            Some(true) => Ok(value),
            Some(false) => Ok(text_itself()),
            None => Err(E::custom("its position is needed")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Yaml, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Reader::new(self.scalars))? {
            list.push(item);
        }
        Ok(Yaml::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Yaml, A::Error> {
        let mut mapping = Mapping::new();
        let key = || Reader { scalars: self.scalars, is_key: true };
        while let Some(key) = fields.next_key_seed(key())? {
            let key = key_text(key)
                .ok_or_else(|| A::Error::custom("a key must be a text, a number or a boolean"))?;
            // The last of two equal keys would win silently.
            if mapping.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate entry with key {key:?}")));
            }
            mapping.insert(key.into(), fields.next_value_seed(Reader::new(self.scalars))?);
        }
        Ok(Yaml::Mapping(mapping))
    }

    /// Reads a value with a local tag, which has no meaning: a scalar is text.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Yaml, A::Error> {
        let (_, value) = tagged.variant::<String>()?;
        let value = value.newtype_variant_seed(self)?;
        Ok(match value {
            Yaml::Bool(value) => Yaml::String(value.to_string()),
            Yaml::Number(value) => Yaml::String(value.to_string()),
            other => other,
        })
    }
}

/// Returns the key as in kubectl's JSON.
fn key_text(key: Yaml) -> Option<String> {
    match key {
        Yaml::String(text) => Some(text),
        Yaml::Bool(value) => Some(value.to_string()),
        Yaml::Number(number) if number.is_f64() => number.as_f64().map(float_text),
        Yaml::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Formats a float in the shortest form, as `%g` does, with single precision.
fn float_text(float: f64) -> String {
    if !float.is_finite() {
        return Number::from(float).to_string();
    }
    #[allow(clippy::cast_possible_truncation, reason = "as in kubectl")]
    let float = float as f32;
    let scientific = format!("{float:e}");
    match scientific
        .split_once('e')
        .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)))
    {
        Some((digits, exponent)) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => float.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_begin_where_three_dashes_are() {
        let text = "# a\n---\na: 1\n--- # b\nb: |\n  ---\n---x: 1\n";
        let expected = [(1, "# a\n"), (2, "---\na: 1\n"), (4, "--- # b\nb: |\n  ---\n---x: 1\n")];
        assert_eq!(documents(text), expected);
        assert_eq!(documents("a: 1"), [(1, "a: 1")]);
    }

    #[test]
    fn each_object_of_a_json_stream_is_a_document() {
        let expected = [(2, "{\"a\": 1}"), (3, "{\n}"), (4, "{}")];
        assert_eq!(documents("\n{\"a\": 1}\n{\n}{}\n\n"), expected);
        // Not JSON to its end.
        for text in ["{a: 1}\n{a: 2}", "{} # x", "{}\n1"] {
            assert_eq!(documents(text), [(1, text)]);
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_document() {
        let found = documents("\u{feff}---\na: 1\n---\n\u{feff}b: 1\n");
        assert_eq!(found, [(1, "---\na: 1\n"), (3, "---\n\u{feff}b: 1\n")]);
        assert_eq!(parse(found[1].1).unwrap().to_string(), r#"{"b":1}"#);
        assert_eq!(documents("\u{feff}\u{feff}a: 1"), [(1, "a: 1")]);
    }

    #[test]
    fn a_number_without_a_fraction_is_an_integer_as_in_kubectl() {
        assert_eq!(parse("[3.0, 1e2, 1.5]").unwrap().to_string(), "[3,100,1.5]");
    }

    #[test]
    fn plain_scalars_are_those_of_yaml_1_1() {
        for (text, value) in [
            ("[1_000, 0X10, 010, -010, 08, 0o17, 0b11, +1, 1_0.5]", "[1000,16,8,-8,8,15,3,1,10.5]"),
            (
                "[yes, No, on, OFF, y, n, yES, ya]",
                r#"[true,false,true,false,true,false,"yES","ya"]"#,
            ),
            ("['yes', \"010\", !!str on, &a 'no', *a]", r#"["yes","010","on","no","no"]"#),
            ("[&a yes, *a, &b y]", "[true,true,true]"),
            ("ü: yes\nb: 'yes'\nc: yes", r#"{"b":"yes","c":true,"ü":true}"#),
            ("a: |-\n  yes\nb: >-\n  010\n", r#"{"a":"yes","b":"010"}"#),
            (
                "{y: 1, 'n': 2, 010: 3, 1.5: 4, 1e6: 5}",
                r#"{"1.5":4,"1e+06":5,"8":3,"n":2,"true":1}"#,
            ),
            (
                "[2001-01-01, 1-2, 0x, +, -, 1__0, _1]",
                r#"["2001-01-01","1-2","0x","+","-",10,"_1"]"#,
            ),
            ("99999999999999999999", "1e+20"),
            ("{\"a\": \"yes\", \"b\": \"\\ud83d\\ude00\"}", "{\"a\":\"yes\",\"b\":\"😀\"}"),
        ] {
            let read = parse(text).map(|value| value.to_string()).unwrap_or_default();
            assert_eq!(read, value, "{text}");
        }
    }

    #[test]
    fn a_number_that_is_none_in_json_and_a_key_that_is_no_text_are_errors() {
        for (text, said) in [
            ("a: .inf", "finite"),
            ("a: [-.INF]", "finite"),
            ("a: .nan", "finite"),
            ("~: 1", "key"),
            ("[1]: 1", "key"),
            ("{y: 1, true: 2}", "duplicate"),
            ("{\"a\": 1, \"a\": 2}", "duplicate"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
