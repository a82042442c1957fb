//! `lockkeeper validate` against the API server, for manifests that are mutated at random:
//! the text of a manifest, its metadata, and the forms of YAML.

use futures::stream::{self, StreamExt};
use kube::api::PostParams;
use kube::core::Request;
use lockkeeper_testkit::world::{World, in_a_world};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::kubectl::Folder;
use crate::kubectl::validate::validate;

/// Number of random manifests of a run.
const RANDOM: usize = 300;

/// Metadata, spec and the rest, each with a difference that there was, or the form next
/// to it that is read in the other way.
const FIXED: &[(&str, &str)] = &[
    ("name: a, labels: {team: b c}", "{}"),
    ("name: a, labels: {team: -b}", "{}"),
    ("name: a, labels: {team: ü}", "{}"),
    ("name: a, labels: {a b: x}", "{}"),
    ("name: a, labels: {EXAMPLE.com/A: x}", "{}"),
    ("name: a, labels: {example.com/A: x}", "{}"),
    ("name: a, labels: {a/b/c: x}", "{}"),
    ("name: a, labels: {'': x}", "{}"),
    ("name: a, labels: {team: null, b: ''}, annotations: {c: ~}", "{}"),
    ("name: a, labels: null, annotations: null, finalizers: null", "{}"),
    ("name: a, annotations: {a b: x}", "{}"),
    ("name: a, annotations: {EXAMPLE.com/A: x y}", "{}"),
    ("name: a, finalizers: [a b/c]", "{}"),
    ("name: a, finalizers: [a.example/c, b]", "{}"),
    ("name: a, finalizers: [null]", "{}"),
    ("name: a, finalizers: [orphan, foregroundDeletion]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u}]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: p}]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: y, uid: u}]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u, more: 1}]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: a/b/c, kind: Pod, name: p, uid: u}]", "{}"),
    ("name: a, ownerReferences: [{apiVersion: v1, kind: Event, name: p, uid: u}]", "{}"),
    ("name: a, ownerReferences: [null]", "{}"),
    ("name: a, managedFields: [{manager: x, more: 1}]", "{}"),
    ("name: a, creationTimestamp: null", "{}"),
    ("name: a, creationTimestamp: yesterday", "{}"),
    ("name: a, namespace: ''", "{}"),
    ("generateName: Bad_", "{}"),
    ("generateName: run-", "{}"),
    ("generateName: -", "{}"),
    ("generateName: ''", "{}"),
    ("name: '', generateName: run-", "{}"),
    ("name: on", "{}"),
    ("name: 'on'", "{}"),
    ("name: a", "{slots: .inf}"),
    ("name: a", "{slots: .nan}"),
    ("name: a", "{slots: 1_000}"),
    ("name: a", "{slots: 0X10}"),
    ("name: a", "{slots: 010}"),
    ("name: a", "{slots: '010'}"),
    ("name: a", "{slots: 1e3}"),
    ("name: a", "{slots: 1.}"),
    ("name: a", "{suspend: yes, fencing: OFF}"),
    ("name: a", "{suspend: 'yes'}"),
    ("name: a", "{y: 1}"),
    ("name: a", "{lockName: n}"),
    ("name: a", "{lockName: null, vhost: null, rabbitmqClusterReference: null}"),
    ("name: a", "{}\nstatus: x"),
    ("name: a", "{}\nstatus: {held: x}"),
    ("name: a", "{}\nstatus: {unknown: 1}"),
    ("name: a", "{}\nstatus: null"),
    ("name: a", "null"),
    ("name: a", "!local {slots: 1}"),
    ("name: !!str 1", "{slots: !!int 1}"),
    ("name: &a 'yes', labels: {a: *a}", "{}"),
    ("name: &a yes, labels: {a: *a}", "{}"),
];

/// Forms of scalars, and texts at the limits of what metadata takes.
const SCALARS: &[&str] = &[
    "a",
    "b-c",
    "x.y",
    "A",
    "a b",
    "-a",
    "a-",
    "a_b",
    "ü",
    "''",
    "'a'",
    "\"a\"",
    "null",
    "~",
    "",
    "Null",
    "'null'",
    "true",
    "True",
    "'true'",
    "yes",
    "'yes'",
    "No",
    "y",
    "'n'",
    "on",
    "\"off\"",
    "0",
    "1",
    "-1",
    "+2",
    "2.0",
    "1.5",
    "1e2",
    "1e6",
    ".5",
    ".inf",
    "-.Inf",
    "+.INF",
    ".NaN",
    "'.inf'",
    "1_0",
    "_1",
    "0x1F",
    "0X1f",
    "0o7",
    "0O7",
    "010",
    "-010",
    "08",
    "'010'",
    "0b11",
    "1:30",
    "2001-01-01",
    "99999999999999999999",
    "[]",
    "{}",
    "[a]",
    "{a: b}",
    "!!str 1",
    "example.com/a",
    "EXAMPLE.com/a",
    "a/b/c",
    "/a",
    "a/",
    "v1",
    "Pod",
    "orphan",
    "5s",
    "1h",
    "ExclusiveQueue",
    "Token",
    "Delete",
];

/// Fields of the spec.
const FIELDS: &[&str] = &[
    "suspend",
    "fencing",
    "lockDelay",
    "protocol",
    "deletionPolicy",
    "token",
    "y",
    "rabbitmqClusterReference",
];

/// Makes manifests at random.
struct Mutator(SmallRng);

impl Mutator {
    fn scalar(&mut self) -> String {
        match self.0.random_range(0..12) {
            0 => "x".repeat(self.0.random_range(62..65)),
            1 => format!("x.{}", "y".repeat(self.0.random_range(56..60))),
            _ => (*SCALARS.choose(&mut self.0).unwrap()).to_owned(),
        }
    }

    /// Returns a valid scalar more often than not, so that not every manifest is invalid.
    fn or(&mut self, valid: &str) -> String {
        if self.0.random_bool(0.7) { valid.to_owned() } else { self.scalar() }
    }

    fn metadata(&mut self) -> String {
        let mut fields = vec![format!("name: {}", self.or("a"))];
        if self.0.random_bool(0.2) {
            fields[0] = format!("generateName: {}", self.or("a-"));
        }
        for map in ["labels", "annotations"] {
            if self.0.random_bool(0.5) {
                let (key, value) = (self.or("a.example/b"), self.or("c"));
                fields.push(format!("{map}: {{{key}: {value}, d: {}}}", self.or("e")));
            }
        }
        if self.0.random_bool(0.3) {
            fields.push(format!("finalizers: [{}]", self.or("a.example/b")));
        }
        if self.0.random_bool(0.3) {
            let valid = [
                ("apiVersion", "v1"),
                ("kind", "Pod"),
                ("name", "p"),
                ("uid", "u"),
                ("controller", "true"),
            ];
            let owner = valid.map(|(field, value)| format!("{field}: {}", self.or(value)));
            fields.push(format!("ownerReferences: [{{{}}}]", owner.join(", ")));
        }
        fields.join(", ")
    }

    fn manifest(&mut self) -> String {
        let metadata = self.metadata();
        let mut spec = vec![format!("slots: {}", self.or("2"))];
        if self.0.random_bool(0.4) {
            let field = *FIELDS.choose(&mut self.0).unwrap();
            spec.push(format!("{field}: {}", self.scalar()));
        }
        let mut text = manifest(&metadata, &format!("{{{}}}", spec.join(", ")));
        if self.0.random_bool(0.1) {
            text = format!("{text}status: {}\n", self.scalar());
        }
        if self.0.random_bool(0.2) {
            // One character more or less, or another one, behind kind and version.
            let mut characters: Vec<char> = text.chars().collect();
            let start = text.find("metadata").unwrap();
            let at = self.0.random_range(start..characters.len() - 1);
            let other = *"aZ0_-./:'\" ,{}[]~!&*|>#%@\tü"
                .chars()
                .collect::<Vec<_>>()
                .choose(&mut self.0)
                .unwrap();
            match self.0.random_range(0..3) {
                0 => characters[at] = other,
                1 => characters.insert(at, other),
                _ => drop(characters.remove(at)),
            }
            text = characters.into_iter().collect();
        }
        text
    }
}

fn manifest(metadata: &str, spec: &str) -> String {
    format!(
        "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphore\nmetadata: {{{metadata}}}\nspec: {spec}\n"
    )
}

/// Returns the API server's message if it rejects the text.
async fn refusal(world: &World, text: String) -> Option<String> {
    let path = format!("/apis/lockkeeper.dev/v1alpha1/namespaces/{}/semaphores", world.namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let mut request = Request::new(path).create(&params, text.into_bytes()).unwrap();
    request.headers_mut().insert("content-type", "application/yaml".parse().unwrap());
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict.parse().unwrap();
    match world.client.request::<Value>(request).await {
        Ok(_) => None,
        Err(kube::Error::Api(answer)) => Some(format!("{} {}", answer.code, answer.message)),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn validate_and_the_api_server_agree_about_mutated_manifests() {
    in_a_world("validate-mutated", async |world| {
        let seed = rand::random::<u64>();
        println!("seed {seed}");
        let mut mutator = Mutator(SmallRng::seed_from_u64(seed));
        let mut all: Vec<String> =
            FIXED.iter().map(|(metadata, spec)| manifest(metadata, spec)).collect();
        for length in [63, 64, 253, 254] {
            let long = "x".repeat(length);
            let fields = [
                format!("name: {long}"),
                format!("name: a, labels: {{{long}: b}}"),
                format!("name: a, labels: {{a: {long}}}"),
                format!("generateName: {long}"),
            ];
            all.extend(fields.map(|metadata| manifest(&metadata, "{}")));
        }
        for size in [256 * 1024 - 1, 256 * 1024] {
            let metadata = format!("name: a, annotations: {{a: {}}}", "x".repeat(size));
            all.push(manifest(&metadata, "{}"));
        }
        all.push(format!("\u{feff}{}", manifest("name: a", "{}")));
        all.extend(std::iter::repeat_with(|| mutator.manifest()).take(RANDOM));

        let folder = Folder::new();
        for (number, text) in all.iter().enumerate() {
            folder.write(&format!("{number:04}.yaml"), text);
        }
        let answer = validate(&["-f", folder.0.to_str().unwrap(), "-o", "json"]).await;
        let answer: Value = serde_json::from_str(&answer.out).unwrap();
        let problems = answer["problems"].as_array().unwrap();
        let server: Vec<_> = stream::iter(all.clone())
            .map(|text| refusal(&world, text))
            .buffered(16)
            .collect()
            .await;
        let (mut refused, mut wrong) = (0, Vec::new());
        for (number, text) in all.iter().enumerate() {
            let file = format!("/{number:04}.yaml");
            let of_file = problems.iter().filter(|problem| {
                problem["warning"] == false && problem["file"].as_str().unwrap().ends_with(&file)
            });
            let said: Vec<&str> =
                of_file.map(|problem| problem["message"].as_str().unwrap()).collect();
            let server = &server[number];
            refused += usize::from(server.is_some());
            if server.is_some() == said.is_empty() {
                let text: String = text.chars().skip(59).take(400).collect();
                wrong.push(format!("{text}server {server:?}\noffline {said:?}\n"));
            }
        }
        assert!(
            wrong.is_empty(),
            "seed {seed}: {} of {}:\n{}",
            wrong.len(),
            all.len(),
            wrong.join("\n")
        );
        assert!(refused > 100 && all.len() - refused > 50, "{refused} of {}", all.len());
    })
    .await;
}
