//! The fields that the operator reads of a watched object. The rest, which a tenant can make as large
//! as the API server allows, is skipped while the text is parsed: it is never in memory as
//! values. See `answers` for the text, and `decoding` for objects that cannot be read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use lockkeeper_api::{FORCE_FINALIZE, REVOKE};
use lockkeeper_plan::clean_text;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// The annotations that are read.
const ANNOTATIONS: [&str; 2] = [FORCE_FINALIZE, REVOKE];

/// Maximum length of the value of an annotation. A longer request is incomplete, and is
/// rejected like any other text.
const MAX_VALUE_BYTES: usize = 4096;

/// Maximum number of finalizers. All of them are needed to change one.
const MAX_FINALIZERS: usize = 16;

/// An object without the metadata that is not read, or why it cannot be read.
#[derive(Clone, Debug)]
pub struct Reduced<K>(pub Result<K, InvalidObject>);

/// The fields of an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    api_version: Option<Value>,
    kind: Option<Value>,
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Value>,
    status: Option<Value>,
}

/// The metadata that is read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    annotations: Option<Annotations>,
    finalizers: Option<Finalizers>,
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Reduced<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { api_version, kind, metadata, spec, status } =
            Fields::deserialize(deserializer)?;
        let too_many = metadata.too_many_finalizers();
        let metadata = ObjectMeta::from(metadata);
        let fields = [
            ("apiVersion", api_version),
            ("kind", kind),
            ("metadata", Some(Value::Object(Map::new()))),
            ("spec", spec),
            ("status", status),
        ];
        let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let object = match too_many {
            Some(error) => Err(error),
            None => K::deserialize(Value::Object(there.collect())).map_err(|e| e.to_string()),
        };
        Ok(Self(match object {
            Ok(mut object) => {
                *object.meta_mut() = metadata;
                Ok(object)
            }
            Err(error) => Err(InvalidObject { error, metadata }),
        }))
    }
}

impl<K: Serialize> Serialize for Reduced<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(invalid) => invalid.metadata.serialize(serializer),
        }
    }
}

impl<K: Resource> Resource for Reduced<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

impl Metadata {
    fn too_many_finalizers(&self) -> Option<String> {
        let count = self.finalizers.as_ref().map_or(0, |finalizers| finalizers.count);
        (count > MAX_FINALIZERS).then(|| {
            format!("metadata.finalizers has {count} entries, of at most {MAX_FINALIZERS}")
        })
    }
}

impl From<Metadata> for ObjectMeta {
    fn from(of: Metadata) -> Self {
        Self {
            name: of.name,
            namespace: of.namespace,
            uid: of.uid,
            resource_version: of.resource_version,
            generation: of.generation,
            creation_timestamp: of.creation_timestamp,
            deletion_timestamp: of.deletion_timestamp,
            annotations: of.annotations.map(|all| all.0).filter(|all| !all.is_empty()),
            finalizers: of.finalizers.map(|all| all.first),
            ..Self::default()
        }
    }
}

/// The annotations in [`ANNOTATIONS`].
struct Annotations(BTreeMap<String, String>);

/// The first finalizers, and the number of all.
struct Finalizers {
    first: Vec<String>,
    count: usize,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reading::<Annotations>(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Finalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reading::<Finalizers>(PhantomData))
    }
}

/// Reads a `T`.
struct Reading<T>(PhantomData<T>);

impl<'de> Visitor<'de> for Reading<Annotations> {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if !ANNOTATIONS.contains(&name.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let mut value: String = map.next_value()?;
            if value.len() > MAX_VALUE_BYTES {
                value = clean_text(&value, MAX_VALUE_BYTES);
            }
            kept.insert(name, value);
        }
        Ok(Annotations(kept))
    }
}

impl<'de> Visitor<'de> for Reading<Finalizers> {
    type Value = Finalizers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("finalizers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Finalizers, A::Error> {
        let mut read = Finalizers { first: Vec::new(), count: 0 };
        loop {
            let more = if read.first.len() < MAX_FINALIZERS {
                let next = all.next_element::<String>()?;
                let more = next.is_some();
                read.first.extend(next);
                more
            } else {
                all.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                return Ok(read);
            }
            read.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use lockkeeper_api::{FINALIZER, Semaphore};
    use serde_json::json;

    use super::*;

    fn object(more: &Value) -> Value {
        let mut metadata = json!({
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
            "annotations": {REVOKE: "x", FORCE_FINALIZE: "true"}, "finalizers": ["b/c", FINALIZER],
        });
        for (name, value) in more.as_object().unwrap() {
            match (metadata.get_mut(name), value) {
                (Some(Value::Object(all)), Value::Object(more)) => all.extend(more.clone()),
                _ => metadata[name] = value.clone(),
            }
        }
        json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore", "metadata": metadata,
            "spec": {"slots": 3}, "status": {"held": 2},
        })
    }

    fn read(text: &Value) -> Reduced<Semaphore> {
        let list = json!({"apiVersion": "x/v1", "kind": "SemaphoreList", "items": [text]});
        let list: ObjectList<Reduced<Semaphore>> = serde_json::from_str(&list.to_string()).unwrap();
        list.items.into_iter().next().unwrap()
    }

    /// Metadata that tenants can write, of 100 kB each.
    fn large() -> [Value; 5] {
        let many = |prefix: &str| -> Map<String, Value> {
            (0..1000).map(|n| (format!("{prefix}{n}"), Value::from("x".repeat(90)))).collect()
        };
        let owner = |n: u32| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x".repeat(50), "uid": format!("u{n}")});
        [
            json!({"annotations": many("example.com/a")}),
            json!({"labels": many("l")}),
            json!({"ownerReferences": (0..1000).map(owner).collect::<Vec<_>>()}),
            json!({"managedFields": [{"manager": "kubectl", "fieldsV1": many("f:")}]}),
            json!({"generateName": "x".repeat(200), "selfLink": "x".repeat(200)}),
        ]
    }

    #[test]
    fn only_fields_that_are_read_are_kept_of_an_object() {
        let small = object(&json!({}));
        let expected: Semaphore = serde_json::from_value(small.clone()).unwrap();
        assert_eq!(serde_json::to_value(read(&small).0.unwrap()).unwrap(), json!(expected));
        for more in large() {
            assert_eq!(json!(read(&object(&more)).0.unwrap()), json!(expected), "{more}");
        }
        let bare = json!({"metadata": {"name": "a", "annotations": null}, "spec": {}});
        assert_eq!(read(&bare).0.unwrap().metadata.annotations, None);
    }

    #[test]
    fn the_annotations_and_finalizers_that_are_kept_have_a_limit() {
        let long = read(&object(&json!({"annotations": {REVOKE: "é".repeat(100_000)}}))).0.unwrap();
        assert!(long.metadata.annotations.unwrap()[REVOKE].len() <= MAX_VALUE_BYTES);
        let named = |count: usize| {
            let names: Vec<_> = (0..count).map(|n| format!("example.com/{n}")).collect();
            read(&object(&json!({"finalizers": names})))
        };
        assert_eq!(
            named(MAX_FINALIZERS).0.unwrap().metadata.finalizers.unwrap().len(),
            MAX_FINALIZERS
        );
        let refused = named(1000).0.unwrap_err();
        assert!(refused.error.contains("has 1000 entries, of at most 16"), "{}", refused.error);
        assert_eq!(refused.metadata.name.as_deref(), Some("a"));
    }
}
