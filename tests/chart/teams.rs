//! What docs/teams.md promises a team, tried with the file that it applies: the groups' rights in
//! Kubernetes, and the rights of the team's user on the broker.

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::random;
use serde_json::json;

use crate::chart::given;
use crate::chart::installing::Installation;

const LOCKS: &str = "semaphores.lockkeeper.dev";
const REVOKE: &[&str] = &["create", LOCKS, "--subresource=revoke"];
const FILE: &str = include_str!("../../examples/team/team.yaml");

/// Acts as a team in the namespace `team-a`, while an operator runs.
pub(super) fn a_team_gets_locks(place: &Installation) {
    let (user, password) = (format!("team-{}", random()), random());
    Installation::broker(
        "PUT",
        &format!("users/{user}"),
        &json!({"password": password, "tags": ""}),
    );
    let (_, permissions) = FILE.split_once("set_permissions -p / team-a-app ").unwrap();
    let permissions: Vec<&str> = permissions.lines().next().unwrap().split('\'').collect();
    let [_, configure, _, write, _, read, _] = permissions[..] else { panic!("{permissions:?}") };
    let permissions = json!({"configure": configure, "write": write, "read": read});
    Installation::broker("PUT", &format!("permissions/{}/{user}", place.vhost()), &permissions);
    let mut url = url::Url::parse(&place.amqp_url()).unwrap();
    url.set_username(&user).unwrap();
    url.set_password(Some(&password)).unwrap();
    let example = "amqp://team-a-app:not-a-real-password@rabbitmq.example.com:5672/%2f";
    assert!(FILE.contains(example));
    place.apply("team-a", &FILE.replace(example, url.as_str()));

    rights_in_kubernetes(place);

    let developer = ["--as=dev", "--as-group=team-a-developers", "--namespace=team-a"];
    let lock = json!({
        "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
        "metadata": {"name": "deploy"}, "spec": {"slots": 1},
    });
    place.kubectl(&[&developer[..], &["apply", "-f", "-"]].concat(), &lock.to_string()).unwrap();
    let wait = ["wait", "--for=condition=Ready", "sem/deploy", "--timeout=60s"];
    place.kubectl(&[&developer[..], &wait].concat(), "").unwrap();
    let scale = ["scale", "sem/deploy", "--replicas=2"];
    place.kubectl(&[&developer[..], &scale].concat(), "").unwrap();
    place.kubectl(&[&developer[..], &wait].concat(), "").unwrap();

    let exec = |lock: &[&str]| {
        let rest = ["--timeout=10s", "--", "echo", "in the lock"];
        let line = [&["exec"], lock, &rest].concat();
        given(place.command(built::lockkeeper(), &line).env("AMQP_URL", url.as_str()), "")
    };
    assert_eq!(exec(&["team-a.deploy"]).unwrap(), "in the lock\n");
    let refused = exec(&["--mutex", "team-b.other"]).unwrap_err();
    assert!(refused.contains("refuses access"), "{refused}");

    place.kubectl(&[&developer[..], &["delete", "sem/deploy"]].concat(), "").unwrap();
    Installation::broker("DELETE", &format!("users/{user}"), &json!({}));
}

fn rights_in_kubernetes(place: &Installation) {
    let may = |group: &str, namespace: &str, what: &[&str]| {
        let group = format!("--as-group={group}");
        let whose = ["--as=someone", &group, "--namespace", namespace, "auth", "can-i", "--quiet"];
        place.kubectl(&[&whose[..], what].concat(), "").is_ok()
    };
    for (group, namespace, what, expected) in [
        ("team-a-developers", "team-a", &["create", LOCKS][..], true),
        ("team-a-developers", "team-a", &["delete", "pressurequeues.lockkeeper.dev"], true),
        ("team-a-developers", "team-a", &["get", "secrets"], false),
        ("team-a-developers", "team-a", REVOKE, false),
        ("team-a-developers", "team-a", &["patch", LOCKS, "--subresource=status"], false),
        ("team-a-developers", "team-b", &["create", LOCKS], false),
        ("team-a-on-call", "team-a", REVOKE, true),
        ("team-a-on-call", "team-b", REVOKE, false),
    ] {
        assert_eq!(may(group, namespace, what), expected, "{group} in {namespace}: {what:?}");
    }
}
