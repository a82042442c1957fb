//! `kubectl lockkeeper …`: the subcommands that show objects and change how the operator
//! handles them.

use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::api_server::{ApiServer, Fault};
use lockkeeper_testkit::built;
use lockkeeper_testkit::world::{PATIENCE, World, eventually, in_a_world};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::kubectl::{Ended, Folder, ended, in_namespace, program};
use crate::operator::rights;

/// Returns the words of each line.
fn table(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect();
    text.lines().map(words).collect()
}

/// Runs it through kubectl, which finds it by its file name.
async fn by_kubectl(arguments: &[&str]) -> Ended {
    let folder = Folder::new();
    let file = folder.0.join("kubectl-lockkeeper");
    std::os::unix::fs::symlink(built::lockkeeper(), &file).unwrap();
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap());
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("lockkeeper").args(arguments).env("PATH", path);
    ended(&mut kubectl).await
}

/// Starts a process that holds a slot, or waits for one, until this is dropped.
fn holder(world: &World, name: &str, who: &str) -> tokio::process::Child {
    let mut command = program(&["hold", name, "-n", &world.namespace, "--identity", who]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    command.kill_on_drop(true).spawn().unwrap()
}

#[tokio::test]
async fn as_a_plugin_it_is_called_as_kubectl_calls_it() {
    in_a_world("plugin", async |world| {
        let help = by_kubectl(&["list", "--help"]).await;
        assert_eq!(help.code, Some(0), "{}", help.said);
        assert!(help.out.contains("Usage: kubectl lockkeeper list"), "{}", help.out);
        for flag in ["--namespace", "-A", "--context", "--kubeconfig", "-w", "-o"] {
            assert!(help.out.contains(flag), "{flag}: {}", help.out);
        }
        let wrong = by_kubectl(&["list", "--nonsense"]).await;
        assert_eq!(wrong.code, Some(64));
        assert!(wrong.said.contains("Usage: kubectl lockkeeper list"), "{}", wrong.said);
        // Under its own name, the help shows that name.
        let help = ended(&mut program(&["list", "--help"])).await;
        assert!(help.out.contains("Usage: lockkeeper list"), "{}", help.out);

        world.apply::<Semaphore>("deploy", "{slots: 3}").await.unwrap();
        let listed = by_kubectl(&["list", "-n", &world.namespace, "-o", "name"]).await;
        assert_eq!(
            (listed.code, listed.out.as_str()),
            (Some(0), "sem/deploy\n"),
            "{}",
            listed.said
        );
        let file = std::env::var("KUBECONFIG").unwrap();
        let mut elsewhere = program(&["list", "-n", &world.namespace, "-o", "name"]);
        elsewhere.env("KUBECONFIG", "/nowhere").args(["--kubeconfig", &file]);
        assert_eq!(ended(&mut elsewhere).await.out, "sem/deploy\n");
        let unknown = in_namespace(&world, &["list", "--context", "nowhere"]).await;
        assert_eq!(unknown.code, Some(69), "{}", unknown.said);
    })
    .await;
}

#[tokio::test]
async fn an_api_server_is_found_as_by_kubectl_and_its_errors_are_sentences() {
    in_a_world("plugin", async |world| {
        world.apply::<Semaphore>("deploy", "{slots: 3}").await.unwrap();
        let file = std::env::var("KUBECONFIG").unwrap();
        let listed = async |environment: &[(&str, &str)], arguments: &[&str]| {
            let mut list = program(&["list", "-n", &world.namespace, "-o", "name"]);
            list.args(arguments).env("KUBECONFIG", &file).envs(environment.iter().copied());
            ended(&mut list).await
        };
        let list = format!("/nowhere::{file}:/nowhere-else");
        let proxy = ("HTTPS_PROXY", "http://127.0.0.1:9");
        for environment in [
            &[("KUBECONFIG", list.as_str())][..],
            &[proxy],
            &[proxy, ("NO_PROXY", "10.0.0.0/8, .svc, 127.0.0.1 ")],
            &[("https_proxy", "socks5://127.0.0.1:9"), ("ALL_PROXY", "socks5://127.0.0.1:9")],
        ] {
            let found = listed(environment, &[]).await;
            assert_eq!(found.out, "sem/deploy\n", "{environment:?}: {}", found.said);
        }

        let folder = Folder::new();
        let by = |name: &str, server: &str, user: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Config, current-context: it, clusters: [{{name: it, cluster: \
                 {{server: '{server}', insecure-skip-tls-verify: true}}}}], users: [{{name: it, user: \
                 {{token: {user}}}}}], contexts: [{{name: it, context: {{cluster: it, user: it}}}}]}}"
            );
            folder.write(name, &text)
        };
        let text = std::fs::read_to_string(&file).unwrap();
        let server = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
        let forbidden = rights::kubeconfig_of(&world, "carol");
        let unknown = by("unknown", server, "nonsense");
        let closed = by("closed", "https://127.0.0.1:9", "nonsense");
        let far = by("far", "https://api.example.com", "nonsense");
        let socks = [("HTTPS_PROXY", "socks5://127.0.0.1:9")];
        for (kubeconfig, environment, code, says) in [
            (&forbidden, &[][..], 77, "cannot list resource"),
            (&unknown, &[], 69, "rejected the credentials"),
            (&closed, &[], 69, "can't be reached (Connection refused"),
            (&far, &[proxy], 69, "can't be reached ("),
            (&far, &socks, 69, "the proxy for the API server has an unsupported protocol"),
            (&far, &[proxy, ("NO_PROXY", "a,,b")], 69, "NO_PROXY is no list of hosts"),
            (&"/nowhere".to_owned(), &[], 69, "there is no kubeconfig file"),
        ] {
            let variables = [&[("KUBECONFIG", kubeconfig.as_str())], environment].concat();
            let ended = listed(&variables, &[]).await;
            assert_eq!(ended.code, Some(code), "{}", ended.said);
            assert!(ended.said.contains(says), "{says}: {}", ended.said);
            assert_eq!(ended.said.trim_end().lines().count(), 1, "{}", ended.said);
            for dump in ["Status {", "Some(", "ApiError", "ServiceError", "kube/"] {
                assert!(!ended.said.contains(dump), "{}", ended.said);
            }
        }
        let mut doctor = program(&["doctor", "-n", &world.namespace, "-o", "json"]);
        let examined = ended(doctor.env("KUBECONFIG", &forbidden)).await;
        assert_eq!(examined.code, Some(0), "{}", examined.said);
        assert!(examined.out.contains("cannot list resource"), "{}", examined.out);
        let hung = ApiServer::new().await;
        hung.suffer(Fault::Hang);
        let mut list = program(&["list", "-n", &world.namespace]);
        let mut doctor = program(&["doctor", "-n", &world.namespace]);
        for command in [&mut list, &mut doctor] {
            let ended = ended(command.env("KUBECONFIG", &hung.kubeconfig)).await;
            assert_eq!(ended.code, Some(69), "{}", ended.said);
            assert!(ended.said.contains("the API server did not answer within 10s"), "{}", ended.said);
        }
        let selector = listed(&[], &["--selector", "a in ("]).await;
        assert!(selector.said.contains("(400)"), "{}", selector.said);
    })
    .await;
}

#[tokio::test]
async fn list_shows_both_kinds_with_their_holders_and_waiters() {
    in_a_world("plugin", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.queue("frames", "bound: 5").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let _holder = holder(&world, "sem/deploy", "build-41");
        world
            .until::<Semaphore>("deploy", "held by build-41", PATIENCE, |s| {
                s.status
                    .as_ref()
                    .is_some_and(|status| status.holders_summary.as_deref() == Some("build-41"))
            })
            .await;

        let listed = in_namespace(&world, &["list"]).await;
        assert_eq!(listed.code, Some(0), "{}", listed.said);
        let lines = table(&listed.out);
        assert_eq!(lines[0].join(" "), "NAME SLOTS HELD FREE DRAINING WAITING READY AGE HOLDERS");
        assert_eq!(lines[1][..7].join(" "), "sem/deploy 2 1 1 0 0 True");
        assert_eq!(lines[1][8], "build-41");
        assert_eq!(lines[3].join(" "), "NAME LENGTH BOUND CLOSED READY AGE PRODUCER CONSUMER");
        assert_eq!(lines[4][..5].join(" "), "pq/frames 0 5 false True");
        assert_eq!(lines[4][6..].join(" "), "- -");
        let wide = in_namespace(&world, &["list", "-o", "wide"]).await.out;
        assert!(wide.contains(&format!("{}.deploy", world.namespace)), "{wide}");

        // In all namespaces, including this one; in a form that kubectl accepts.
        let all = ended(&mut program(&["list", "-A"])).await;
        let mine =
            table(&all.out).into_iter().filter(|line| line.first() == Some(&world.namespace));
        assert_eq!(mine.count(), 2, "{}", all.out);
        let json = in_namespace(&world, &["list", "-o", "json"]).await.out;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["apiVersion"], &json["kind"]), (&"v1".into(), &"List".into()));
        let kinds: Vec<_> = json["items"].as_array().unwrap().iter().map(|i| &i["kind"]).collect();
        assert_eq!(kinds, ["Semaphore", "PressureQueue"]);
        let yaml = in_namespace(&world, &["list", "-o", "yaml"]).await.out;
        assert_eq!(serde_yaml::from_str::<Value>(&yaml).unwrap()["kind"], "List");
        let none = in_namespace(&world, &["list", "-l", "team=none"]).await;
        assert_eq!((none.code, none.out.as_str()), (Some(0), ""));
    })
    .await;
}

#[tokio::test]
async fn a_watched_list_has_a_line_for_each_change() {
    in_a_world("plugin", async |world| {
        world.apply::<Semaphore>("deploy", "{slots: 3}").await.unwrap();
        let mut command = program(&["list", "-w", "-o", "name", "-n", &world.namespace]);
        let mut child =
            command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = async || {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
            line.unwrap().unwrap().unwrap()
        };
        assert_eq!(next().await, "sem/deploy");
        world.apply::<PressureQueue>("frames", "{}").await.unwrap();
        assert_eq!(next().await, "pq/frames");
        world.apply::<Semaphore>("deploy", "{slots: 4}").await.unwrap();
        assert_eq!(next().await, "sem/deploy");
        child.kill().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn holders_and_waiters_are_shown_by_the_name_of_the_object() {
    in_a_world("plugin", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        let none = in_namespace(&world, &["waiters", "deploy"]).await;
        assert_eq!(none.code, Some(0), "{}", none.said);
        assert!(none.said.contains("0 clients wait for sem/deploy"), "{}", none.said);

        let _first = holder(&world, "sem/deploy", "build-41");
        // From the status, and from the broker.
        for live in [&[][..], &["--live"]] {
            eventually("the holder is shown", PATIENCE, async || {
                let shown =
                    in_namespace(&world, &[&["holders", "sem/deploy"], live].concat()).await;
                assert_eq!(shown.code, Some(0), "{}", shown.said);
                let lines = table(&shown.out);
                assert_eq!(lines[0].join(" "), "SLOT IDENTITY SINCE REASON");
                lines.len() == 2 && lines[1][..2].join(" ") == "1 build-41"
            })
            .await;
        }
        let _second = holder(&world, "sem/deploy", "build-42");
        eventually("the waiter is shown", PATIENCE, async || {
            let shown = in_namespace(&world, &["waiters", "sem/deploy", "-o", "json"]).await;
            assert_eq!(shown.code, Some(0), "{}", shown.said);
            let json: Value = serde_json::from_str(&shown.out).unwrap();
            let who = &json["waiters"][0];
            json["waiting"] == 1 && who["identity"] == "build-42" && who["user"].is_string()
        })
        .await;

        let none = in_namespace(&world, &["holders", "sem/none"]).await;
        assert_eq!(none.code, Some(64), "{}", none.said);
        assert!(none.said.contains("there is no Semaphore \"none\""), "{}", none.said);
        // If the broker is unreachable, the operator's status is shown.
        world.secret("rabbit", &[("amqpUri", "amqp://u:hush@127.0.0.1:1".to_owned())]).await;
        let blind = in_namespace(&world, &["waiters", "deploy"]).await;
        assert_eq!(blind.code, Some(0), "{}", blind.said);
        assert!(blind.said.contains("only how many the operator saw"), "{}", blind.said);
        assert!(!blind.said.contains("hush"), "{}", blind.said);
        world.secret("rabbit", &[("amqpUri", world.amqp_url())]).await;
    })
    .await;
}

#[tokio::test]
async fn suspended_objects_are_left_alone_until_they_are_resumed() {
    in_a_world("plugin", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.queue("frames", "bound: 5").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let both = ["sem/deploy", "pressurequeue/frames"];
        let done = in_namespace(&world, &[&["suspend"], &both[..]].concat()).await;
        assert_eq!(done.code, Some(0), "{}", done.said);
        let said = "semaphore.lockkeeper.dev/deploy suspended\npressurequeue.lockkeeper.dev/frames suspended\n";
        assert_eq!(done.out, said);
        let again = in_namespace(&world, &["suspend", "sem/deploy"]).await;
        assert!(again.out.ends_with("was suspended already\n"), "{}", again.out);

        // As a scaling user: not by apply, which would remove suspend.
        let more = kube::api::Patch::Merge(serde_json::json!({"spec": {"slots": 4}}));
        let api = world.api::<Semaphore>();
        api.patch("deploy", &kube::api::PatchParams::default(), &more).await.unwrap();
        world
            .until::<Semaphore>("deploy", "suspended", PATIENCE, |s| {
                lockkeeper_testkit::world::has_reason(s, "Ready", "Suspended")
            })
            .await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 1));
        let done = in_namespace(&world, &[&["resume"], &both[..]].concat()).await;
        assert_eq!(done.out.matches(" resumed\n").count(), 2, "{}{}", done.out, done.said);
        world.semaphore_ready("deploy").await;
        assert_eq!(world.queues().await, world.lock_queues("deploy", 4));

        let wrong = in_namespace(&world, &["suspend", "sem/deploy", "frames"]).await;
        assert_eq!(wrong.code, Some(64), "nothing was done: {}", wrong.out);
        assert!(!api.get("deploy").await.unwrap().spec.suspend);
        let none = in_namespace(&world, &["resume", "pq/none"]).await;
        assert_eq!(none.code, Some(64), "{}", none.said);
    })
    .await;
}
