//! Generated files: the committed files match the current types, and the resource
//! definitions have complete texts for `kubectl explain` and useful columns for `kubectl
//! get`. No server.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use lockkeeper_api::all_crds;
use lockkeeper_testkit::built;
use serde::Deserialize;
use serde_json::Value;

#[test]
fn the_committed_resource_definitions_are_what_the_types_give_now() {
    let now = format!("{}/crds-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::create_dir_all(&now).unwrap();
    let written =
        Command::new(built::lockkeeper()).args(["crds", "--output-dir", &now]).status().unwrap();
    assert!(written.success());
    let files = |folder: &Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let expected = files(now.as_ref());
    assert_eq!(expected.len(), all_crds().len());
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    assert_eq!(files(&committed), expected, "crds: run `make generate`");
    for file in &expected {
        let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
        assert!(
            read(&committed) == read(now.as_ref()),
            "crds/{file} is not what the types give: run `make generate`"
        );
    }
    std::fs::remove_dir_all(&now).unwrap();
}

#[test]
fn the_definitions_are_printed_as_they_are_written() {
    let printed = Command::new(built::lockkeeper()).arg("crds").output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let documents: Vec<Value> = printed
        .split("---\n")
        .filter(|text| !text.is_empty())
        .map(|text| serde_yaml::from_str(text).unwrap())
        .collect();
    let expected: Vec<Value> =
        all_crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    assert_eq!(documents, expected);
}

/// One property of a schema: its path and description.
struct Property {
    path: String,
    schema: Value,
    required: bool,
}

impl Property {
    fn description(&self) -> &str {
        self.schema["description"].as_str().unwrap_or_default()
    }
}

/// Returns every property at every depth.
fn properties(schema: &Value) -> Vec<Property> {
    fn walk(path: &str, schema: &Value, found: &mut Vec<Property>) {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            walk(&path, property, found);
            let required = required.contains(&name.as_str());
            found.push(Property { path, schema: property.clone(), required });
        }
        for inside in ["items", "additionalProperties"] {
            if schema[inside].is_object() {
                walk(&format!("{path}[]"), &schema[inside], found);
            }
        }
        for several in ["allOf", "anyOf", "oneOf"] {
            assert!(schema[several].is_null(), "{path}: kubectl explain does not show {several}");
        }
    }
    let mut found = Vec::new();
    walk("", schema, &mut found);
    found
}

/// Returns kind, version and all properties of each definition.
fn kinds() -> Vec<(String, Value, Vec<Property>)> {
    let read = |crd| {
        let crd = serde_json::to_value(crd).unwrap();
        let versions = crd["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1);
        let properties = properties(&versions[0]["schema"]["openAPIV3Schema"]);
        (crd["spec"]["names"]["kind"].as_str().unwrap().to_owned(), crd, properties)
    };
    let kinds: Vec<_> = all_crds().into_iter().map(read).collect();
    assert_eq!(kinds.len(), 2);
    kinds
}

#[test]
fn every_property_at_every_depth_is_described_in_one_paragraph() {
    for (kind, _, properties) in kinds() {
        for needed in [".spec", ".status", ".status.conditions[].reason"] {
            assert!(properties.iter().any(|property| property.path == needed), "{kind}{needed}");
        }
        for property in &properties {
            let path = format!("{kind}{}", property.path);
            assert!(property.description().len() > 10, "{path} has no description");
            assert!(!property.description().contains('\n'), "{path}: kubectl breaks lines itself");
        }
    }
    let (_, _, semaphore) = &kinds()[0];
    assert!(semaphore.iter().any(|property| property.path == ".status.holders[].since"));
}

#[test]
fn numbers_have_a_sign_and_a_size_that_other_languages_know() {
    for (kind, _, properties) in kinds() {
        for property in properties.iter().filter(|p| p.schema["type"] == "integer") {
            let format = property.schema["format"].as_str().unwrap_or_default();
            assert!(matches!(format, "int32" | "int64"), "{kind}{}: {format:?}", property.path);
        }
    }
}

#[test]
fn lists_of_objects_are_merged_by_a_key_that_each_has() {
    let key_of = |path: &str| match path {
        ".status.conditions" => "type",
        ".status.holders" => "id",
        _ => panic!("{path}: which field identifies its elements?"),
    };
    for (kind, _, properties) in kinds() {
        let lists = properties.iter().filter(|p| p.schema["items"]["type"] == "object");
        let lists: Vec<_> = lists.collect();
        assert!(!lists.is_empty(), "{kind}");
        for Property { path, schema, .. } in lists {
            assert_eq!(schema["x-kubernetes-list-type"], "map", "{kind}{path}");
            let key = key_of(path);
            assert_eq!(
                schema["x-kubernetes-list-map-keys"],
                serde_json::json!([key]),
                "{kind}{path}"
            );
            let required = schema["items"]["required"].as_array().unwrap();
            assert!(required.iter().any(|field| field == key), "{kind}{path}");
        }
    }
}

#[test]
fn every_field_of_a_spec_documents_its_range_its_default_and_an_example() {
    for (kind, _, properties) in kinds() {
        let of_spec = |p: &&Property| p.path.starts_with(".spec.");
        for property in properties.iter().filter(of_spec) {
            let (path, text) = (format!("{kind}{}", property.path), property.description());
            let schema = &property.schema;
            match &schema["default"] {
                Value::Null => assert!(
                    property.required || text.contains("Defaults to ") || text.contains("Unset: "),
                    "{path} does not say what happens without it: {text}"
                ),
                Value::Object(_) => {}
                default => {
                    let default = default.as_str().map_or(default.to_string(), ToOwned::to_owned);
                    let says = text.replace('`', "").contains(&format!("Defaults to {default}"));
                    assert!(says, "{path}: {text}");
                }
            }
            if schema["type"] == "integer" {
                let limit =
                    |name| schema[name].as_f64().unwrap_or_else(|| panic!("{path} has no {name}"));
                let range = format!("{:.0} to {:.0}", limit("minimum"), limit("maximum"));
                assert!(text.contains(&range), "{path} does not say {range}: {text}");
            }
            for value in schema["enum"].as_array().into_iter().flatten() {
                assert!(text.contains(value.as_str().unwrap()), "{path} does not mention {value}");
            }
            let is_text_or_number = matches!(schema["type"].as_str(), Some("integer" | "string"));
            if is_text_or_number && schema["enum"].is_null() {
                assert!(text.contains("Example: "), "{path} has no example: {text}");
            }
        }
    }
}

#[test]
fn a_field_that_can_not_be_changed_says_so() {
    for (kind, crd, properties) in kinds() {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let rules = schema["properties"]["spec"]["x-kubernetes-validations"].as_array().unwrap();
        let mut found = 0;
        for rule in rules {
            let message = rule["message"].as_str().unwrap();
            assert!(message.len() > 20, "{kind}: {rule}");
            if !message.contains("can't be changed, added or removed") {
                continue;
            }
            found += 1;
            let path = format!(".spec{}", rule["fieldPath"].as_str().unwrap());
            let property = properties.iter().find(|p| p.path == path).unwrap();
            assert!(property.description().contains("Immutable."), "{kind}{path}");
        }
        assert!(found >= 2, "{kind}: {found}");
    }
}

/// The columns of `kubectl get` for each kind, and, after the bar, those that `-o wide`
/// adds.
const COLUMNS: [(&str, &str); 2] = [
    ("Semaphore", "Slots Held Free Waiting Ready Age Holders | Draining Lock Status"),
    ("PressureQueue", "Length Bound Closed Ready Age Producer Consumer | Produced Consumed Status"),
];

#[test]
fn every_column_shows_something_that_exists() {
    for ((kind, crd, properties), (expected, columns)) in kinds().into_iter().zip(COLUMNS) {
        assert_eq!(kind, expected);
        let printed = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
        let names = |wide: bool| {
            let wanted = |column: &&Value| (column["priority"].as_i64() == Some(1)) == wide;
            let names = printed.iter().filter(wanted).map(|c| c["name"].as_str().unwrap());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(format!("{} | {}", names(false), names(true)), columns);
        for column in printed {
            assert!(!column["description"].as_str().unwrap_or_default().is_empty(), "{column}");
            let path = column["jsonPath"].as_str().unwrap();
            // `[?(…)]` selects from a list.
            let path = match (path.find('['), path.rfind(']')) {
                (Some(from), Some(to)) => format!("{}[]{}", &path[..from], &path[to + 1..]),
                _ => path.to_owned(),
            };
            let exists = path == ".metadata.creationTimestamp"
                || properties.iter().any(|property| property.path == path);
            assert!(exists, "{kind}: {column}");
        }
    }
}

#[test]
fn the_kinds_have_their_short_names_categories_and_scale() {
    let names = |crd: &Value, what: &str| crd["spec"]["names"][what].clone();
    let [(_, semaphore, properties), (_, queue, _)] = kinds().try_into().ok().unwrap();
    assert_eq!(names(&semaphore, "shortNames"), serde_json::json!(["sem"]));
    assert_eq!(names(&semaphore, "categories"), serde_json::json!(["locks", "rabbitmq"]));
    assert_eq!(names(&queue, "shortNames"), serde_json::json!(["pq"]));
    assert_eq!(names(&queue, "categories"), serde_json::json!(["locks", "redis"]));

    let scale = &semaphore["spec"]["versions"][0]["subresources"]["scale"];
    for (what, path, type_) in [
        ("specReplicasPath", ".spec.slots", "integer"),
        ("statusReplicasPath", ".status.slots", "integer"),
        ("labelSelectorPath", ".status.selector", "string"),
    ] {
        assert_eq!(scale[what], path);
        let property = properties.iter().find(|property| property.path == path).unwrap();
        assert_eq!(property.schema["type"], type_, "{path}");
    }
    for crd in [&semaphore, &queue] {
        assert!(crd["spec"]["versions"][0]["subresources"]["status"].is_object());
        assert_eq!(crd["spec"]["scope"], "Namespaced");
    }
}

/// The examples `full.yaml` promise "every field".
#[test]
fn the_full_examples_have_every_field_of_the_spec() {
    for ((_, _, properties), folder) in kinds().into_iter().zip(["semaphore", "pressure-queue"]) {
        let file = format!("{}/examples/{folder}/full.yaml", env!("CARGO_MANIFEST_DIR"));
        // Some fields cannot be combined in one object.
        let text = std::fs::read_to_string(&file).unwrap();
        let objects: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
            .map(|object| Value::deserialize(object).unwrap())
            .collect();
        for property in properties.iter().filter(|p| p.path.starts_with(".spec.")) {
            let pointer = property.path.replace('.', "/");
            let exists = objects.iter().any(|object| object.pointer(&pointer).is_some());
            assert!(exists, "{file} has no {}", property.path);
        }
    }
}

/// With a missing broker, a command that was parsed reports a connection error.
#[test]
fn the_examples_run_commands_that_this_program_understands() {
    let mut understood = 0;
    let files =
        ["cronjob.yaml", "pod.yaml", "standby.yaml", "sidecar.yaml", "unchanged-image.yaml"];
    for file in files {
        let file = format!("{}/examples/exec/{file}", env!("CARGO_MANIFEST_DIR"));
        for document in std::fs::read_to_string(&file).unwrap().split("\n---\n") {
            let document: Value = serde_yaml::from_str(document).unwrap();
            let template = ["/spec/jobTemplate/spec/template", "/spec/template"];
            let template = template.iter().find_map(|path| document.pointer(path));
            let pod = template.unwrap_or(&document);
            let words = |list: &Value| -> Vec<String> {
                let list = list.as_array().into_iter().flatten();
                list.map(|word| word.as_str().unwrap().to_owned()).collect()
            };
            let places = ["/spec/containers/0", "/spec/initContainers/0"];
            let containers = places.iter().filter_map(|place| pod.pointer(place));
            let words = containers.map(|c| [words(&c["command"]), words(&c["args"])].concat());
            let Some(line) = words.into_iter().find_map(|mut line| {
                let runs = |verb| line.iter().position(|word| word == verb);
                let start = runs("exec").or_else(|| runs("hold"))?;
                Some(line.split_off(start))
            }) else {
                continue;
            };
            let line = line.iter().map(|word| match word.strip_prefix("--listen=") {
                Some(_) => "--listen=127.0.0.1:0",
                None => word,
            });
            let output = Command::new(built::lockkeeper())
                .args(line)
                .env("AMQP_URL", "amqp://127.0.0.1:1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(69), "{file}: {said}");
            understood += 1;
        }
    }
    assert_eq!(understood, files.len());
}
