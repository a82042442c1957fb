//! Checks a value against the schema of a resource definition, with the API server's
//! messages. See `check` for the rules (CEL).

use serde_json::{Map, Value};

/// A problem with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Problem {
    /// Path of the field, for example `spec.slots`. Empty for the whole object.
    pub path: String,
    pub message: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Schema keywords that are supported here, or have no effect on a value. A definition
/// with any other keyword cannot be checked like the API server does.
#[cfg(test)]
const KNOWN: &[&str] = &[
    "type",
    "properties",
    "required",
    "items",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minItems",
    "pattern",
    "nullable",
    "default",
    "description",
    "title",
    "format",
    "additionalProperties",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
];

/// Suggests the field that was probably meant.
pub(super) fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let distance = |known: &str| strsim::levenshtein(&name.to_lowercase(), &known.to_lowercase());
    let nearest = known.map(|known| (distance(known), known)).min();
    match nearest {
        Some((edits, known)) if edits <= 1 + name.chars().count() / 4 => {
            format!(", did you mean {known:?}?")
        }
        _ => String::new(),
    }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Finds fields that are not in the schema.
pub(super) fn unknown(path: &str, schema: &Value, value: &Value, found: &mut Vec<Problem>) {
    match value {
        Value::Object(fields) => {
            let Some(known) = schema["properties"].as_object() else { return };
            for (name, value) in fields {
                let path = child(path, name);
                match known.get(name) {
                    Some(schema) => unknown(&path, schema, value, found),
                    None => {
                        let hint = did_you_mean(name, known.keys().map(String::as_str));
                        let message = format!("unknown field {path:?}{hint}");
                        found.push(Problem::new(path, message));
                    }
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                unknown(&format!("{path}[{index}]"), &schema["items"], item, found);
            }
        }
        _ => {}
    }
}

/// Removes nulls where a default applies, as the API server does.
pub(super) fn without_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let schema = &schema["properties"][name];
                let defaulted = schema.get("default").is_some() && schema["nullable"] != true;
                !(value.is_null() && defaulted)
            });
            for (name, value) in fields {
                without_nulls(&schema["properties"][name], value);
            }
        }
        Value::Array(items) => {
            for item in items {
                without_nulls(&schema["items"], item);
            }
        }
        _ => {}
    }
}

/// Removes all nulls: rules and readers of the object treat a nullable field that is null
/// as absent.
pub(super) fn nulls_as_absent(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(nulls_as_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(nulls_as_absent),
        _ => {}
    }
}

/// Finds values that the schema does not allow.
pub(super) fn check(path: &str, schema: &Value, value: &Value, found: &mut Vec<Problem>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(wanted) = schema["type"].as_str()
        && !has_type(wanted, value)
    {
        let is = type_of(value);
        let message =
            format!("Invalid value: {is:?}: {path} in body must be of type {wanted}: {is:?}");
        found.push(Problem::new(path, message));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let message =
            format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
        found.push(Problem::new(path, message));
    }
    match value {
        Value::Number(number) => check_number(path, schema, number, found),
        Value::String(text) => check_text(path, schema, text, found),
        Value::Array(items) => {
            let count = items.len();
            if schema["maxItems"].as_u64().is_some_and(|max| count as u64 > max) {
                let message =
                    format!("Too many: {count}: must have at most {} items", schema["maxItems"]);
                found.push(Problem::new(path, message));
            }
            if schema["minItems"].as_u64().is_some_and(|min| (count as u64) < min) {
                let message = format!(
                    "Invalid value: {path} in body should have at least {} items",
                    schema["minItems"]
                );
                found.push(Problem::new(path, message));
            }
            for (index, item) in items.iter().enumerate() {
                check(&format!("{path}[{index}]"), &schema["items"], item, found);
            }
        }
        Value::Object(fields) => check_object(path, schema, fields, found),
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_object(path: &str, schema: &Value, fields: &Map<String, Value>, found: &mut Vec<Problem>) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            found.push(Problem::new(child(path, name), "Required value"));
        }
    }
    for (name, value) in fields {
        if let Some(schema) = schema["properties"].get(name) {
            check(&child(path, name), schema, value, found);
        } else if schema["additionalProperties"].is_object() {
            check(&child(path, name), &schema["additionalProperties"], value, found);
        }
    }
}

fn check_number(path: &str, schema: &Value, number: &serde_json::Number, found: &mut Vec<Problem>) {
    let is = number.as_f64().unwrap_or(f64::NAN);
    let mut refuse = |limit: f64, how: &str| {
        let message =
            format!("Invalid value: {number}: {path} in body should be {how} or equal to {limit}");
        found.push(Problem::new(path, message));
    };
    if let Some(minimum) = schema["minimum"].as_f64().filter(|minimum| is < *minimum) {
        refuse(minimum, "greater than");
    }
    if let Some(maximum) = schema["maximum"].as_f64().filter(|maximum| is > *maximum) {
        refuse(maximum, "less than");
    }
}

fn check_text(path: &str, schema: &Value, text: &str, found: &mut Vec<Problem>) {
    let mut refuse = |message: String| found.push(Problem::new(path, message));
    let length = text.chars().count() as u64;
    if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        refuse(format!(
            "Invalid value: {text:?}: {path} in body should be at least {min} chars long"
        ));
    }
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        refuse(format!("Too long: may not be more than {max} bytes"));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        match regex::Regex::new(pattern) {
            Ok(regex) if regex.is_match(text) => {}
            Ok(_) => {
                refuse(format!("Invalid value: {text:?}: {path} in body should match '{pattern}'"));
            }
            Err(_) => refuse(format!("the pattern {pattern:?} can't be checked here")),
        }
    }
}

fn has_type(wanted: &str, value: &Value) -> bool {
    match wanted {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        wanted => wanted == type_of(value),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::all_crds;

    use super::*;

    #[test]
    fn no_definition_has_a_word_that_is_not_understood() {
        fn walk(schema: &Value) {
            let Some(words) = schema.as_object() else { return };
            for word in words.keys() {
                assert!(KNOWN.contains(&word.as_str()), "{word} is not checked");
            }
            schema["properties"].as_object().into_iter().flatten().for_each(|(_, s)| walk(s));
            walk(&schema["items"]);
            walk(&schema["additionalProperties"]);
        }
        for crd in all_crds() {
            let crd = serde_json::to_value(crd).unwrap();
            walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        }
    }

    #[test]
    fn the_closest_known_name_is_suggested() {
        let known = || ["slots", "lockName", "suspend"].into_iter();
        assert_eq!(did_you_mean("slotz", known()), ", did you mean \"slots\"?");
        assert_eq!(did_you_mean("lockname", known()), ", did you mean \"lockName\"?");
        assert_eq!(did_you_mean("replicas", known()), "");
    }
}
