//! The verdicts of GitOps tools on objects: kstatus, Argo CD's Lua and Flux's CEL, each
//! evaluated by the tool's own library, in one process (`dev/go/servers/evaluate`).

use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::built::checkout;
use crate::environment::variable;

/// Evaluates requests, each a JSON object with `do`. Returns one answer for each.
pub fn evaluate(questions: &[Value]) -> Vec<Value> {
    let program = variable("LOCKKEEPER_EVALUATOR");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}: run dev/build-servers"));
    let mut input = child.stdin.take().unwrap();
    let lines: Vec<String> = questions.iter().map(|question| format!("{question}\n")).collect();
    // It answers while it reads, so neither side may block the other.
    let writer = std::thread::spawn(move || {
        lines.iter().try_for_each(|line| input.write_all(line.as_bytes()))
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let answers: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

/// Evaluates one request, whose answer must not be an error.
pub fn answer(question: &Value) -> Value {
    let answer = evaluate(std::slice::from_ref(question)).remove(0);
    assert!(answer["error"].is_null(), "{answer}: {question}");
    answer
}

/// Reads a file of `examples/`.
pub fn example(path: &str) -> String {
    let path = checkout().join("examples").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the objects in a file of `examples/`.
pub fn objects(path: &str) -> Vec<Value> {
    let text = example(path);
    serde_yaml::Deserializer::from_str(&text).map(|o| Value::deserialize(o).unwrap()).collect()
}

/// The verdicts of the three tools on an object, in the order of [`TOOLS`].
pub struct Verdicts {
    health: String,
    checks: Value,
}

/// The tools.
pub const TOOLS: [&str; 3] = ["kstatus", "Argo CD", "Flux"];

impl Verdicts {
    /// Uses the script and the expressions of `examples/`.
    pub fn of_the_examples() -> Self {
        let kustomization = objects("flux/kustomization.yaml").remove(0);
        Self {
            health: example("argocd/health.lua"),
            checks: kustomization["spec"]["healthCheckExprs"].clone(),
        }
    }

    /// Returns the verdicts on each object.
    pub fn on(&self, objects: &[Value]) -> Vec<[String; 3]> {
        let questions: Vec<Value> = objects
            .iter()
            .flat_map(|object| {
                [
                    json!({"do": "kstatus", "object": object}),
                    json!({"do": "health", "object": object, "script": self.health}),
                    json!({"do": "flux", "object": object, "checks": self.checks}),
                ]
            })
            .collect();
        let answers = evaluate(&questions);
        answers
            .chunks(TOOLS.len())
            .map(|answers| {
                std::array::from_fn(|i| {
                    let verdict = answers[i]["verdict"].as_str();
                    verdict.unwrap_or_else(|| panic!("{}: {}", TOOLS[i], answers[i])).to_owned()
                })
            })
            .collect()
    }
}
