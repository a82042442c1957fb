//! The jobs of CI systems in `examples/ci`, by the rules of each system: its own types, checks
//! or schema. See `exec::ci` for what their commands do.

use std::io::Write;
use std::process::{Command, Stdio};

use lockkeeper_testkit::built::{self, checkout};
use lockkeeper_testkit::environment::{random, variable};
use lockkeeper_testkit::evaluator::{evaluate, example, objects};
use serde_json::{Value, json};

use crate::exec::ci::{scripts, step};

/// Returns a copy of the object that has these fields at this place.
fn with(object: &Value, place: &str, fields: &Value) -> Value {
    let mut copy = object.clone();
    let there = copy.pointer_mut(place).unwrap().as_object_mut().unwrap();
    there.extend(fields.as_object().unwrap().clone());
    copy
}

/// Fails unless the evaluator accepts the object in this file, and rejects each variant of it.
fn check(file: &str, question: &str, wrong: &[(&str, Value)]) {
    let object = objects(file).remove(0);
    let variants = wrong.iter().map(|(place, fields)| with(&object, place, fields));
    let questions: Vec<Value> = std::iter::once(object.clone())
        .chain(variants)
        .map(|object| json!({"do": question, "object": object}))
        .collect();
    let said = evaluate(&questions);
    assert!(said[0]["error"].is_null(), "{file}: {}", said[0]);
    for (wrong, said) in wrong.iter().zip(&said[1..]) {
        assert!(said["error"].is_string(), "{file} {wrong:?}: {said}");
    }
}

#[test]
fn the_workflow_of_github_has_only_what_github_reads() {
    let wrong = [
        ("/jobs/deploy", json!({"timeout": 60})),
        ("/jobs/deploy", json!({"runs-on": null})),
        ("/jobs/deploy/steps/2", json!({"command": "true"})),
        ("/jobs/deploy/steps/2/env", json!({"AMQP_URL": "${{ secret.AMQP_URL }}"})),
        ("/permissions", json!({"contents": "reads"})),
    ];
    check("ci/github.yaml", "github", &wrong);
}

#[test]
fn the_workflow_of_argo_has_only_what_argo_reads() {
    let wrong = [
        ("/spec/templates/1/retryStrategy", json!({"limits": 2})),
        ("/spec/templates/1/initContainers/0", json!({"mirrorVolumes": true})),
        ("/spec", json!({"entrypoint": "absent"})),
        ("/spec/templates/0/steps/0/0", json!({"template": "absent"})),
        ("/spec/templates/1/container", json!({"args": ["{{workflow.nam}}"]})),
    ];
    check("ci/argo-workflow.yaml", "decode", &wrong);
}

#[test]
fn the_job_of_gitlab_has_only_what_gitlab_reads() {
    let job = objects("ci/gitlab.yaml").remove(0);
    let wrong = [
        ("/deploy/retry", json!({"exit_code": 75})),
        ("/deploy", json!({"scripts": ["true"]})),
        ("/deploy", json!({"timeout": 60})),
    ];
    let folder = built::scratch().join(format!("gitlab-{}", random()));
    std::fs::create_dir(&folder).unwrap();
    let copies: Vec<_> = wrong
        .iter()
        .enumerate()
        .map(|(n, (place, fields))| {
            let copy = folder.join(format!("{n}.json"));
            std::fs::write(&copy, with(&job, place, fields).to_string()).unwrap();
            copy
        })
        .collect();
    let output = Command::new(checkout().join("target/foreign-venv/bin/check-jsonschema"))
        .args(["--builtin-schema", "vendor.gitlab-ci", "--output-format", "json"])
        .arg(checkout().join("examples/ci/gitlab.yaml"))
        .args(&copies)
        .output()
        .expect("dev/install fetches it");
    std::fs::remove_dir_all(&folder).unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rejected = |file: &str| {
        let errors = said["errors"].as_array().unwrap();
        errors.iter().any(|error| error["filename"].as_str().unwrap().ends_with(file))
    };
    assert!(!rejected("gitlab.yaml"), "{said}");
    for (n, wrong) in wrong.iter().enumerate() {
        assert!(rejected(&format!("/{n}.json")), "{wrong:?}: {said}");
    }
}

/// Runs a program of `dev/java`. Returns its output.
fn groovy(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("java")
        // Starts in half the time.
        .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg(format!("{}/*", variable("LOCKKEEPER_JAVA_OF_CI")))
        .args(["groovy.ui.GroovyMain", program])
        .args(arguments)
        .current_dir(checkout())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dev/install installs it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_task_of_tekton_has_only_what_tekton_reads() {
    let task = objects("ci/tekton.yaml").remove(0);
    let secret = "/spec/steps/1/env/0/valueFrom/secretKeyRef";
    let wrong = [
        ("/spec/steps/1", json!({"argument": ["exec"]})),
        ("/spec/steps/1", json!({"args": "exec"})),
        (secret, json!({"keys": "AMQP_URL"})),
        ("/spec", json!({"step": []})),
        ("/spec/volumes/0", json!({"emptydir": {}})),
    ];
    let variants = wrong.iter().map(|(place, fields)| with(&task, place, fields).to_string());
    let lines: Vec<String> = std::iter::once(task.to_string()).chain(variants).collect();
    let said = groovy("dev/java/tekton.groovy", &[], &lines.join("\n"));
    let said: Vec<&str> = said.lines().collect();
    assert_eq!((said.len(), said[0]), (lines.len(), "accepted"), "{said:?}");
    assert!(!said[1..].contains(&"accepted"), "{wrong:?}: {said:?}");
}

/// No package has Jenkins' own rules, so by Groovy, and a table of sections and steps.
#[test]
fn the_jenkinsfile_has_known_sections_and_a_busy_lock_is_no_failure() {
    let copy = built::scratch().join(format!("Jenkinsfile-{}", random()));
    std::fs::write(&copy, example("ci/Jenkinsfile").replace("stages {", "stage {")).unwrap();
    let files = [copy.to_str().unwrap(), "examples/ci/Jenkinsfile"];
    let said = groovy("dev/java/jenkinsfile.groovy", &files, "");
    std::fs::remove_file(&copy).unwrap();
    let (wrong, right) = said.split_once('\n').unwrap();
    assert!(wrong.starts_with("rejected: "), "{said}");
    assert_eq!(right, format!("SUCCESS UNSTABLE FAILURE\n{}", scripts()[2]));
}

#[test]
fn the_scripts_of_the_jobs_pass_shellcheck() {
    let unquoted = "echo $HOME/*".to_owned();
    let all = scripts().into_iter().chain([step("Install lockkeeper")]);
    for (script, passes) in all.map(|script| (script, true)).chain([(unquoted, false)]) {
        let mut shellcheck = Command::new("shellcheck")
            .args(["--shell=sh", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        shellcheck.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = shellcheck.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), passes, "{script}\n{said}");
    }
}

#[test]
fn each_job_waits_for_less_than_its_own_timeout() {
    let [github, gitlab, argo] = ["github", "gitlab", "argo-workflow"]
        .map(|file| objects(&format!("ci/{file}.yaml")).remove(0));
    assert_eq!(github["jobs"]["deploy"]["timeout-minutes"], 60);
    assert_eq!(gitlab["deploy"]["timeout"], "1h");
    assert_eq!(argo.pointer("/spec/templates/1/activeDeadlineSeconds"), Some(&json!(3600)));
    assert!(example("ci/Jenkinsfile").contains("timeout(time: 1, unit: 'HOURS')"));
    for file in ["github.yaml", "gitlab.yaml", "argo-workflow.yaml", "tekton.yaml", "Jenkinsfile"] {
        let text = example(&format!("ci/{file}")).replace("--timeout=", "--timeout ");
        assert_eq!(text.matches("--timeout 30m").count(), 1, "{file}");
    }
}
