//! Checks whether the API server would accept an object, without an API server. Performs
//! the same steps in the same order. Rules that depend on the stored object, such as
//! immutable fields, cannot be checked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use lockkeeper_api::{GROUP, all_crds};
use serde_json::{Value, json};

use super::schema::{self, Problem, did_you_mean};
use crate::cli::kinds::{KINDS, Object, Reader};
use crate::cli::manifest::Manifest;

/// Checks objects of all kinds.
pub(in crate::cli) struct Checker {
    kinds: Vec<Kind>,
    validator: Validator,
    /// Field names of the metadata of every object.
    metadata: Vec<String>,
}

struct Kind {
    name: String,
    version: String,
    schema: Value,
    rules: CompiledSchema,
    read: Reader,
}

impl Checker {
    pub fn new() -> Self {
        let kinds = all_crds().into_iter().filter_map(|crd| {
            let (_, read) = KINDS.into_iter().find(|(name, _)| *name == crd.spec.names.kind)?;
            Some((crd.spec, read))
        });
        let kinds = kinds.flat_map(|(crd, read)| {
            let name = crd.names.kind;
            crd.versions.into_iter().map(move |version| {
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
                let schema = serde_json::to_value(schema).unwrap_or_default();
                let rules = compile_schema(&schema);
                Kind { name: name.clone(), version: version.name, schema, rules, read }
            })
        });
        let metadata = schemars::schema_for!(ObjectMeta);
        let metadata = metadata.get("properties").and_then(Value::as_object);
        let metadata = metadata.map(|all| all.keys().cloned().collect()).unwrap_or_default();
        Self { kinds: kinds.collect(), validator: Validator::new(), metadata }
    }

    /// Returns the typed object, with defaults applied, or all its problems.
    pub fn check(&self, manifest: &Manifest) -> Result<Box<dyn Object>, Vec<Problem>> {
        let kind = self.kind(manifest).map_err(|problem| vec![problem])?;
        let mut value = manifest.value.clone();

        // Strict decoding: unknown fields are errors.
        let mut found = Vec::new();
        let mut known = kind.schema.clone();
        for field in ["apiVersion", "kind", "metadata"] {
            known["properties"][field] = json!({});
        }
        schema::unknown("", &known, &value, &mut found);
        self.check_metadata(&value["metadata"], &mut found);
        if !found.is_empty() {
            return Err(found);
        }

        // Defaults first, then the schema, then the rules.
        schema::without_nulls(&kind.schema, &mut value);
        let mut value = kube::core::cel::apply_defaults(&kind.schema, &value);
        schema::check("", &kind.schema, &value, &mut found);
        if !found.is_empty() {
            return Err(found);
        }
        schema::nulls_as_absent(&mut value);
        if let Err(errors) = self.validator.validate_compiled(&kind.rules, &value, None) {
            return Err(errors.into_iter().map(|error| rule(&kind.schema, &error)).collect());
        }
        (kind.read)(value).map_err(|error| vec![Problem::new("", error.to_string())])
    }

    fn kind(&self, manifest: &Manifest) -> Result<&Kind, Problem> {
        let kind = manifest.text_at("/kind").unwrap_or_default();
        let version = manifest.text_at("/apiVersion").unwrap_or_default();
        let known = || self.kinds.iter().map(|kind| kind.name.as_str());
        let Some(found) = self.kinds.iter().find(|known| known.name == kind) else {
            let hint = did_you_mean(kind, known());
            return Err(Problem::new("kind", format!("no kind {kind:?} in {GROUP}{hint}")));
        };
        let wanted = format!("{GROUP}/{}", found.version);
        if version != wanted {
            let message = format!("no version {version:?}: the kind {kind} is in {wanted}");
            return Err(Problem::new("apiVersion", message));
        }
        Ok(found)
    }

    fn check_metadata(&self, metadata: &Value, found: &mut Vec<Problem>) {
        let known = || self.metadata.iter().map(String::as_str);
        for name in metadata.as_object().into_iter().flatten().map(|(name, _)| name) {
            if !known().any(|known| known == name) {
                let path = format!("metadata.{name}");
                let message = format!("unknown field {path:?}{}", did_you_mean(name, known()));
                found.push(Problem::new(path, message));
            }
        }
        let read = match metadata {
            Value::Null => Ok(ObjectMeta::default()),
            metadata => serde_json::from_value(metadata.clone()),
        };
        if let Err(error) = read {
            found.push(Problem::new("metadata", error.to_string()));
            return;
        }
        let named = ["name", "generateName"].map(|field| (field, metadata[field].as_str()));
        match named {
            [(_, Some(name)), _] if !is_dns(name, 253, true) => {
                let message = format!(
                    "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character, at most 253 of them"
                );
                found.push(Problem::new("metadata.name", message));
            }
            [(_, None), (_, None)] => {
                let message = "Required value: name or generateName is required";
                found.push(Problem::new("metadata.name", message));
            }
            _ => {}
        }
        if let Some(namespace) = metadata["namespace"].as_str()
            && !is_dns(namespace, 63, false)
        {
            let message = format!(
                "Invalid value: {namespace:?}: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character, at most 63 of them"
            );
            found.push(Problem::new("metadata.namespace", message));
        }
    }
}

/// Converts a rule's error to a problem at the field that the rule specifies.
fn rule(schema: &Value, error: &kube::core::cel::ValidationError) -> Problem {
    let pointer = error.field_path.split('.').filter(|part| !part.is_empty());
    let node = pointer.fold(schema, |schema, name| &schema["properties"][name]);
    let rules = node["x-kubernetes-validations"].as_array();
    let of = rules.into_iter().flatten().find(|rule| rule["rule"] == error.rule.as_str());
    let field = of.and_then(|rule| rule["fieldPath"].as_str()).unwrap_or_default();
    Problem::new(
        format!("{}{field}", error.field_path),
        format!("Invalid value: {}", error.message),
    )
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
