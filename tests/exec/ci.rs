//! The jobs of CI systems in `examples/ci`: their commands on a real broker, also when a system
//! ends them. See `gitops::ci` for the files by the systems' rules.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{random, signal, signal_group, variable};
use lockkeeper_testkit::evaluator::{example, objects};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::{Value, json};
use tokio::process::Command;
use url::Url;

use crate::exec::commands::{Running, Scratch, alive_with};
use crate::exec::{json_of, outcome, run, succeed};

/// Returns the script of a step of the workflow.
pub fn step(name: &str) -> String {
    let workflow = objects("ci/github.yaml").remove(0);
    let steps = workflow["jobs"]["deploy"]["steps"].as_array().unwrap().clone();
    let step = steps.into_iter().find(|step| step["name"] == name).unwrap();
    step["run"].as_str().unwrap().to_owned()
}

/// Returns the scripts of GitHub, GitLab and Jenkins that deploy.
pub fn scripts() -> [String; 3] {
    let gitlab = objects("ci/gitlab.yaml").remove(0);
    let lines = gitlab["deploy"]["script"].as_array().unwrap();
    let lines: Vec<&str> = lines.iter().map(|line| line.as_str().unwrap()).collect();
    let jenkins = example("ci/Jenkinsfile");
    let script = jenkins.split("script: '''").nth(1).unwrap().split("'''").next().unwrap();
    // In Groovy's strings a backslash at the end of a line continues it.
    [step("Deploy"), lines.join("\n"), script.replace("\\\n", "")]
}

/// Returns the command line of the container in the object at this place.
fn container(file: &str, place: &str) -> Vec<String> {
    let object = objects(file).remove(0);
    let container = object.pointer(place).unwrap();
    let words =
        ["command", "args"].into_iter().flat_map(|list| container[list].as_array().unwrap());
    words.map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// How a system ends a job.
#[derive(Clone, Copy)]
enum End {
    /// INT to its first process only.
    First,
    /// TERM to each process.
    Each,
    /// TERM to the process group.
    Group,
}

/// One job of an example, whose deployment is a script of the test's.
struct Job {
    system: &'static str,
    end: End,
    lock: String,
    /// In all processes of the job.
    mark: String,
    words: Vec<String>,
    script: String,
    scratch: Scratch,
}

/// Runs until `go` exists, which has its exit code, or until it is ended.
const DEPLOY: &str = r#"#!/bin/sh
trap 'echo ended >>register; exit 3' INT TERM
echo "$LOCK_NAME" >>register
until [ -e go ]; do sleep 0.05; done
exit "$(cat go)"
"#;

impl Job {
    /// Returns the jobs of all examples, each with a lock of its own.
    async fn all(vhost: &Vhost) -> Vec<Self> {
        let [github, gitlab, jenkins] = scripts();
        let tekton = container("ci/tekton.yaml", "/spec/steps/1");
        let argo = container("ci/argo-workflow.yaml", "/spec/templates/1/container");
        let line = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        // GitLab's runner evaluates the script in a pipeline, with options like these.
        let gitlab_runner = "set -o pipefail; set -o errexit; : | eval \"$(cat SCRIPT)\"; exit 0";
        let jobs = vec![
            ("github", End::First, line(&["bash", "-e", "SCRIPT"]), github),
            ("gitlab", End::Each, line(&["bash", "-c", gitlab_runner]), gitlab),
            ("jenkins", End::Each, line(&["sh", "-xe", "SCRIPT"]), jenkins),
            ("tekton", End::Group, tekton, String::new()),
            ("argo", End::Group, argo, String::new()),
        ];
        let mut all = Vec::new();
        for (system, end, words, script) in jobs {
            let lock = format!("ci.{system}");
            succeed(vhost, &["semaphore", "create", &lock, "--slots", "1"]).await;
            let scratch = Scratch::new();
            std::fs::write(scratch.file("deploy.sh"), DEPLOY).unwrap();
            let mode = PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(scratch.file("deploy.sh"), mode).unwrap();
            let mark = format!("CI_JOB={}", random());
            all.push(Self { system, end, lock, mark, words, script, scratch });
        }
        all
    }

    /// Returns the job's first process, with the variables that the systems set, and with this
    /// timeout instead of the example's.
    fn command(&self, vhost: &Vhost, timeout: &str) -> Command {
        let file = format!("script-{timeout}");
        let edited = |text: &String| {
            let text = text.replace("default.deploy", &self.lock).replace("30m", timeout);
            let text = text.replace("/lockkeeper-bin/lockkeeper", built::lockkeeper());
            text.replace("/usr/local/bin/deploy", "./deploy.sh").replace("SCRIPT", &file)
        };
        std::fs::write(self.scratch.file(&file), edited(&self.script)).unwrap();
        let programs = Path::new(built::lockkeeper()).parent().unwrap();
        let path = format!("{}:{}", programs.display(), variable("PATH"));
        let (name, value) = self.mark.split_once('=').unwrap();
        // The environment of the tests may ignore some signals.
        let mut command = Command::new("env");
        command
            .arg("--default-signal")
            .args(self.words.iter().map(edited))
            .current_dir(self.scratch.file(""));
        command.env("PATH", path).env("AMQP_URL", vhost.url()).env(name, value);
        for (name, value) in [
            ("GITHUB_REPOSITORY", "team/shop"),
            ("GITHUB_WORKFLOW", "roll out"),
            ("GITHUB_REF_NAME", "main"),
            ("GITHUB_SERVER_URL", "https://ci.example.com"),
            ("GITHUB_RUN_ID", "7"),
            ("CI_PROJECT_PATH", "team/shop"),
            ("CI_JOB_NAME", "roll out"),
            ("CI_COMMIT_REF_NAME", "main"),
            ("CI_JOB_URL", "https://ci.example.com/7"),
            ("JOB_NAME", "team/shop"),
            ("BUILD_NUMBER", "7"),
            ("BUILD_URL", "https://ci.example.com/7"),
        ] {
            command.env(name, value);
        }
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
    }

    /// Starts it, and waits until it deploys.
    async fn deploying(&self, vhost: &Vhost) -> Running {
        let running = Running::start(&self.scratch, "job", self.command(vhost, "1m"));
        eventually("it deploys", async || self.scratch.read("register").contains(&self.lock)).await;
        running
    }

    fn go(&self, code: &str) {
        // Not seen before it is complete.
        std::fs::write(self.scratch.file("going"), code).unwrap();
        std::fs::rename(self.scratch.file("going"), self.scratch.file("go")).unwrap();
    }

    /// What the holder of the lock says about itself: identity, reason and link.
    fn announced(&self) -> [Value; 3] {
        match self.system {
            "github" => [
                json!("team/shop"),
                json!("roll out of main"),
                json!("https://ci.example.com/team/shop/actions/runs/7"),
            ],
            "gitlab" => {
                [json!("team/shop"), json!("roll out of main"), json!("https://ci.example.com/7")]
            }
            "jenkins" => [json!("team/shop"), json!("build 7"), json!("https://ci.example.com/7")],
            // The systems replace these.
            "tekton" => [
                json!("$(context.taskRun.namespace)/$(context.taskRun.name)"),
                json!("task $(context.task.name)"),
                Value::Null,
            ],
            _ => [
                json!("{{workflow.namespace}}/{{workflow.name}}"),
                json!("pod {{pod.name}}"),
                Value::Null,
            ],
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_deploys_under_the_lock_or_reports_that_it_is_busy() {
    let vhost = Vhost::create().await;
    let jobs = Job::all(&vhost).await;
    futures::future::join_all(jobs.iter().map(|job| busy_and_free(job, &vhost))).await;
}

async fn busy_and_free(job: &Job, vhost: &Vhost) {
    let (system, lock) = (job.system, &job.lock);
    let mut first = job.deploying(vhost).await;
    let mut announced = Value::Null;
    eventually("the holder is known", async || {
        announced = json_of(vhost, &["holders", lock]).await[0].clone();
        !announced["identity"].is_null()
    })
    .await;
    let said = ["identity", "reason", "url"].map(|field| announced[field].clone());
    assert_eq!(said, job.announced(), "{announced}");

    let busy = outcome(job.command(vhost, "3s")).await;
    assert_eq!(busy.code, Some(75), "{system}: {busy:?}");
    assert!(busy.stderr.contains(&format!("waiting for a slot of {lock}")), "{busy:?}");

    job.go("7");
    assert_eq!(first.code().await, Some(7), "{system}: {}", first.said());
    job.go("0");
    let free = outcome(job.command(vhost, "1m")).await;
    assert_eq!(free.code, Some(0), "{system}: {free:?}");
    assert_eq!(job.scratch.read("register"), format!("{lock}\n{lock}\n"), "{system}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_or_killed_job_ends_its_command_and_frees_the_lock() {
    let vhost = Vhost::create().await;
    let jobs = Job::all(&vhost).await;
    futures::future::join_all(jobs.iter().map(|job| cancelled_and_killed(job, &vhost))).await;
}

async fn cancelled_and_killed(job: &Job, vhost: &Vhost) {
    let (system, lock) = (job.system, &job.lock);
    let mut cancelled = job.deploying(vhost).await;
    match job.end {
        End::First => cancelled.signal("INT"),
        End::Each => alive_with(&job.mark).into_iter().for_each(|pid| signal(pid, "TERM")),
        End::Group => signal_group(cancelled.pid(), "TERM"),
    }
    assert_ne!(cancelled.code().await, Some(0), "{system}: {}", cancelled.said());
    // A shell that got TERM did not wait for the others.
    eventually("all have ended", async || alive_with(&job.mark).is_empty()).await;
    let register = job.scratch.read("register");
    assert!(register.ends_with("\nended\n"), "{system}: {register}");
    let free = run(vhost, &["exec", lock, "--no-wait", "--", "true"]).await;
    assert_eq!(free.code, Some(0), "{system}: {free:?}");

    std::fs::remove_file(job.scratch.file("register")).unwrap();
    let _killed = job.deploying(vhost).await;
    for pid in alive_with(&job.mark) {
        signal(pid, "KILL");
    }
    // Less than the two heartbeats after which a silent holder loses its slot.
    let free = run(vhost, &["exec", lock, "--timeout", "10s", "--", "true"]).await;
    assert_eq!(free.code, Some(0), "{system}: {free:?}");
    eventually("all have ended", async || alive_with(&job.mark).is_empty()).await;
}

/// The archive of a release, and the step that downloads it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_installs_the_archive_only_if_its_checksum_is_right() {
    let scratch = Scratch::new();
    // As dev/dist packs it.
    let pack = "mkdir lockkeeper-0.1.0-linux-amd64 && cd lockkeeper-0.1.0-linux-amd64 && \
        printf '#!/bin/sh\n' >lockkeeper && chmod +x lockkeeper && cd .. && \
        tar -czf archive.tar.gz lockkeeper-0.1.0-linux-amd64 && sha256sum archive.tar.gz";
    let sum = std::process::Command::new("sh")
        .args(["-c", pack])
        .current_dir(scratch.file(""))
        .output()
        .unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let sum = sum.split(' ').next().unwrap();
    std::fs::write(scratch.file("script"), step("Install lockkeeper")).unwrap();
    let zeros = "0".repeat(64);
    for (n, (sum, installed)) in [(sum, true), (&zeros, false)].into_iter().enumerate() {
        let temporary = scratch.file(&format!("runner-{n}"));
        std::fs::create_dir(&temporary).unwrap();
        let mut step = Command::new("bash");
        step.args(["-e", &scratch.file("script")])
            .env("ARCHIVE", Url::from_file_path(scratch.file("archive.tar.gz")).unwrap().as_str())
            .env("SHA256", sum)
            .env("RUNNER_TEMP", &temporary)
            .env("GITHUB_PATH", scratch.file(&format!("path-{n}")));
        let step = outcome(step).await;
        assert_eq!(step.code == Some(0), installed, "{step:?}");
        let path = scratch.read(&format!("path-{n}"));
        let program = Path::new(&format!("{}/lockkeeper", path.trim())).exists();
        assert_eq!((program, path.is_empty()), (installed, !installed), "{step:?}");
    }
}
