//! Checks the metadata of a new object, with the API server's rules and messages.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, ObjectMeta, OwnerReference,
};
use serde_json::{Value, json};

use super::schema::Problem;

/// Maximum size of all annotations together.
const ANNOTATIONS: usize = 256 * 1024;

/// Maximum length of a label's value, and of a key without its prefix.
const LABEL: usize = 63;

/// Number of characters of `generateName` that the API server uses.
const PREFIX: usize = 58;

/// Returns the schema of the metadata, as far as field names are concerned.
pub(super) fn schema() -> Value {
    let fields = |schema: schemars::Schema| {
        let names = schema.get("properties").and_then(Value::as_object);
        let fields = names.into_iter().flatten().map(|(name, _)| (name.clone(), json!({})));
        json!({"properties": fields.collect::<serde_json::Map<_, _>>()})
    };
    let mut schema = fields(schemars::schema_for!(ObjectMeta));
    schema["properties"]["ownerReferences"] =
        json!({"items": fields(schemars::schema_for!(OwnerReference))});
    schema["properties"]["managedFields"] =
        json!({"items": fields(schemars::schema_for!(ManagedFieldsEntry))});
    schema
}

/// Returns the name that the object will have. Of a generated name, the random characters
/// are `x`.
fn name(metadata: &ObjectMeta) -> Option<String> {
    let generated = |prefix: &str| prefix.chars().take(PREFIX).chain("xxxxx".chars()).collect();
    filled(metadata.name.as_deref())
        .map(ToOwned::to_owned)
        .or_else(|| filled(metadata.generate_name.as_deref()).map(generated))
}

fn filled(field: Option<&str>) -> Option<&str> {
    field.filter(|text| !text.is_empty())
}

/// Finds values that the API server would reject. Returns the name that the object will
/// have.
pub(super) fn check(metadata: &Value, found: &mut Vec<Problem>) -> Option<String> {
    match serde_json::from_value::<ObjectMeta>(without_nulls(metadata)) {
        Ok(metadata) => {
            Check(found).all(&metadata);
            name(&metadata)
        }
        Err(error) => {
            found.push(Problem::new("metadata", error.to_string()));
            None
        }
    }
}

/// Reads null as the API server does: as absent, or as empty text in a list or a map.
fn without_nulls(metadata: &Value) -> Value {
    if metadata.is_null() {
        return json!({});
    }
    let mut metadata = metadata.clone();
    let Some(fields) = metadata.as_object_mut() else { return metadata };
    fields.retain(|_, value| !value.is_null());
    for (name, value) in fields {
        let empty = if name == "ownerReferences" { json!({}) } else { json!("") };
        match value {
            Value::Object(values) => {
                values
                    .values_mut()
                    .filter(|value| value.is_null())
                    .for_each(|value| *value = empty.clone());
            }
            Value::Array(items) => {
                items
                    .iter_mut()
                    .filter(|item| item.is_null())
                    .for_each(|item| *item = empty.clone());
                let of_items = items.iter_mut().filter_map(Value::as_object_mut);
                of_items.for_each(|item| item.retain(|_, value| !value.is_null()));
            }
            _ => {}
        }
    }
    metadata
}

/// The checks, which collect the problems that they find.
struct Check<'a>(&'a mut Vec<Problem>);

impl Check<'_> {
    fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Problem::new(format!("metadata.{field}"), message));
    }

    fn invalid(&mut self, field: &str, value: &str, why: &str) {
        self.add(field, format!("Invalid value: {value:?}: {why}"));
    }

    fn all(&mut self, metadata: &ObjectMeta) {
        self.names(metadata);
        for (key, value) in metadata.labels.iter().flatten() {
            self.key("labels", key, key);
            if !value.is_empty() && !is_label(value) {
                let why = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character, at most 63 of them";
                self.invalid("labels", value, why);
            }
        }
        let annotations = || metadata.annotations.iter().flatten();
        for (key, _) in annotations() {
            self.key("annotations", key, &key.to_lowercase());
        }
        if annotations().map(|(key, value)| key.len() + value.len()).sum::<usize>() > ANNOTATIONS {
            self.add("annotations", format!("Too long: may not be more than {ANNOTATIONS} bytes"));
        }
        let finalizers = || metadata.finalizers.iter().flatten();
        for finalizer in finalizers() {
            self.key("finalizers", finalizer, finalizer);
        }
        if ["orphan", "foregroundDeletion"].iter().all(|name| finalizers().any(|own| own == name)) {
            let why = "finalizer orphan and foregroundDeletion cannot be both set";
            self.add("finalizers", format!("Invalid value: {why}"));
        }
        self.owners(metadata.owner_references.as_deref().unwrap_or_default());
    }

    fn names(&mut self, metadata: &ObjectMeta) {
        if let Some(prefix) = filled(metadata.generate_name.as_deref()) {
            // The random characters follow, so it may end with a dash.
            let masked = prefix.strip_suffix('-').and_then(|start| {
                let end = start.char_indices().next_back()?.0;
                Some(format!("{}a", &start[..end]))
            });
            self.subdomain("generateName", prefix, masked.as_deref().unwrap_or(prefix));
        }
        match name(metadata) {
            Some(name) => self.subdomain("name", &name, &name),
            None => self.add("name", "Required value: name or generateName is required"),
        }
        if let Some(namespace) =
            filled(metadata.namespace.as_deref()).filter(|name| !is_dns(name, 63, false))
        {
            let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character, at most 63 of them";
            self.invalid("namespace", namespace, why);
        }
    }

    fn subdomain(&mut self, field: &str, shown: &str, name: &str) {
        if !is_dns(name, 253, true) {
            let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character, at most 253 of them";
            self.invalid(field, shown, why);
        }
    }

    /// Checks a qualified name: a name with an optional prefix, which is a domain.
    fn key(&mut self, field: &str, shown: &str, key: &str) {
        let (prefix, name) =
            key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        if prefix.is_some_and(|prefix| !is_dns(prefix, 253, true)) || !is_label(name) {
            let why = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character, at most 63 of them, with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            self.invalid(field, shown, why);
        }
    }

    fn owners(&mut self, owners: &[OwnerReference]) {
        for (index, owner) in owners.iter().enumerate() {
            let group_and_version: Vec<&str> = owner.api_version.split('/').collect();
            let version = match group_and_version[..] {
                [version] | [_, version] => version,
                _ => "",
            };
            for (field, value) in [
                ("apiVersion", version),
                ("kind", &owner.kind),
                ("name", &owner.name),
                ("uid", &owner.uid),
            ] {
                if value.is_empty() {
                    let field = format!("ownerReferences[{index}].{field}");
                    self.invalid(&field, value, "must not be empty");
                }
            }
            if owner.api_version == "v1" && owner.kind == "Event" {
                let field = format!("ownerReferences[{index}]");
                self.invalid(&field, "v1, Kind=Event", "is disallowed from being an owner");
            }
        }
        if owners.iter().filter(|owner| owner.controller == Some(true)).count() > 1 {
            let why = "Only one reference can have Controller set to true";
            self.add("ownerReferences", format!("Invalid value: {why}"));
        }
    }
}

/// Returns whether the text is a label's value that is not empty, or a key without prefix.
fn is_label(text: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LABEL
        && text.starts_with(ends)
        && text.ends_with(ends)
        && text.chars().all(|c| ends(c) || "-_.".contains(c))
}

fn is_dns(name: &str, max: usize, dots: bool) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= max && if dots { name.split('.').all(is_label) } else { is_label(name) }
}
