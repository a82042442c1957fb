//! Checks whether the API server would accept an object, without an API server. Performs
//! the same steps in the same order. Rules that depend on the stored object, such as
//! immutable fields, cannot be checked.

use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use lockkeeper_api::{GROUP, all_crds};
use serde_json::{Value, json};

use super::metadata;
use super::schema::{self, Problem, did_you_mean};
use crate::cli::kinds::{KINDS, Object, Reader};
use crate::cli::manifest::Manifest;

/// Checks objects of all kinds.
pub(in crate::cli) struct Checker {
    kinds: Vec<Kind>,
    validator: Validator,
    /// The schema of every object's metadata, for its field names.
    metadata: Value,
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
        Self { kinds: kinds.collect(), validator: Validator::new(), metadata: metadata::schema() }
    }

    /// Returns the typed object, with defaults applied, or all its problems.
    pub fn check(&self, manifest: &Manifest) -> Result<Box<dyn Object>, Vec<Problem>> {
        let kind = self.kind(manifest).map_err(|problem| vec![problem])?;
        let mut value = manifest.value.clone();

        // Strict decoding: unknown fields are errors.
        let mut found = Vec::new();
        let mut known = kind.schema.clone();
        for field in ["apiVersion", "kind"] {
            known["properties"][field] = json!({});
        }
        known["properties"]["metadata"] = self.metadata.clone();
        schema::unknown("", &known, &value, &mut found);
        let name = metadata::check(&value["metadata"], &mut found);
        if !found.is_empty() {
            return Err(found);
        }
        value["metadata"]["name"] = json!(name);
        // A new object's status is dropped, whatever it is.
        if let Some(fields) = value.as_object_mut() {
            fields.remove("status");
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

    /// As [`Self::check`], for a use without Kubernetes, which generates no names.
    pub fn check_named(&self, manifest: &Manifest) -> Result<Box<dyn Object>, Vec<Problem>> {
        let object = self.check(manifest)?;
        if manifest.has_name() {
            return Ok(object);
        }
        let message = "a manifest with generateName stands for another object each time that it is created. Set metadata.name, or create the object with kubectl create";
        Err(vec![Problem::new("metadata.generateName", message)])
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
