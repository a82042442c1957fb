//! The environment of a command, and the exit codes for its results.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio::io::AsyncWriteExt;

use crate::exec::commands::Scratch;
use crate::exec::{LOCK, create, lockkeeper, outcome, run, spoken, succeed};

with_protocols! {
    every {
        a_lock_that_is_held_is_waited_for_as_long_as_asked,
        nothing_of_ours_is_left_at_the_broker_afterwards,
    }
    slots {
        the_command_finds_its_lock_in_the_environment_and_no_other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_without_an_interpreter_runs_and_a_reason_need_not_be_text() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    std::fs::write(scratch.file("job"), "echo \"$1 $LOCK_SLOT\"; exit 7\n").unwrap();
    std::fs::set_permissions(scratch.file("job"), PermissionsExt::from_mode(0o755)).unwrap();
    let latin_1 = OsStr::from_bytes(b"f\xfcr alle");
    let path = format!("{}:{}", scratch.file(""), std::env::var("PATH").unwrap());
    for name in [scratch.file("job"), "job".to_owned()] {
        let mut command = lockkeeper(&vhost, &["exec", LOCK, "--reason"]);
        command.arg(latin_1).arg("--identity").arg(latin_1).env("PATH", &path);
        command.args(["--", &name, "a  b"]);
        let ran = outcome(command).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(7), "a  b 1\n"), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_is_the_commands_own_or_identifies_the_error() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let unreachable = "amqp://guest:guest@127.0.0.1:1";
    let at_port_of = |name: &str| {
        let port = url::Url::parse(&variable(name)).unwrap().port().unwrap();
        format!("amqp://guest:guest@127.0.0.1:{port}")
    };
    let [redis, management] = ["REDIS_URL", "RABBITMQ_MANAGEMENT_URL"].map(at_port_of);
    let table: &[(&[&str], i32, &str)] = &[
        (&[LOCK, "--", "true"], 0, ""),
        (&["--semaphore", LOCK, "--", "sh", "-c", "exit 7"], 7, ""),
        (&["--mutex", "ci.one", "--", "sh", "-c", "exit 255"], 255, ""),
        (&[LOCK, "--", "sh", "-c", "kill -TERM $$"], 143, ""),
        (&[LOCK, "--", "sh", "-c", "kill -KILL $$"], 137, ""),
        (&[LOCK, "--", "no-such-program-here"], 127, "not found"),
        (&[LOCK, "--", "/etc/passwd"], 126, "Permission denied"),
        (&["--", "true"], 64, "<LOCK>"),
        (&[LOCK, "--mutex", "other", "--", "true"], 64, "cannot be used with"),
        (&[LOCK, "true"], 64, "unexpected argument"),
        (&[LOCK], 64, "COMMAND"),
        (&[LOCK, "--heartbeat", "10ms", "--", "true"], 64, "a heartbeat is from"),
        (&["a-1-A", "--", "true"], 64, "can't be used"),
        (&[LOCK, "-n", "demo", "--", "true"], 64, "sem/NAME"),
        (
            &[LOCK, "--protocol", "Paper", "--", "true"],
            64,
            "ExclusiveQueue, ExclusiveConsumer, Token",
        ),
        (&[LOCK, "--queue-type", "Quorum", "--", "true"], 64, "only for --protocol Token"),
        (
            &[LOCK, "--protocol", "Token", "--profile", "AmqpLocksPython", "--", "true"],
            64,
            "only for --protocol ExclusiveQueue",
        ),
        (&["--mutex", LOCK, "--protocol", "Token", "--", "true"], 64, "one exclusive queue"),
        (&["--mutex", "ci.one", "--priority", "1", "--", "true"], 0, ""),
        (
            &[LOCK, "--profile", "AmqpLocksPython", "--priority", "1", "--", "true"],
            64,
            "a priority has no effect",
        ),
        (&["sem/a", "--protocol", "ExclusiveQueue", "--", "true"], 64, "are sem/a's own"),
        (&["sem/a", "--queue-type", "Classic", "--", "true"], 64, "are sem/a's own"),
        (&[LOCK, "--url", unreachable, "--", "true"], 69, "can't be reached"),
        (
            &[LOCK, "--url", &redis, "--no-wait", "--", "true"],
            69,
            "it accepts connections, but gives no answer",
        ),
        (&[LOCK, "--url", &management, "--", "true"], 69, "it accepts connections, but ends them"),
        (&[LOCK, "--", "echo a && echo b"], 127, "not by a shell: use sh -c"),
        (&[LOCK, "--vhost", "no-such-vhost", "--", "true"], 69, "no virtual host"),
        (&["ci.unknown", "--no-wait", "--", "true"], 81, "there is no semaphore ci.unknown"),
        (&["demo/deploy", "--", "true"], 64, "for a resource, use sem/deploy -n demo"),
        // Another code for a lock that was not acquired in time changes no other code.
        (&["--mutex", "ci.one", "-E", "7", "--", "sh", "-c", "exit 75"], 75, ""),
        (&["ci.unknown", "-E", "7", "--", "true"], 81, "there is no semaphore"),
        (&[LOCK, "-E", "7", "--url", unreachable, "--no-wait", "--", "true"], 69, "can't be"),
        (&[LOCK, "-E", "7", "--protocol", "Token", "--", "true"], 64, "of protocol"),
    ];
    for (arguments, code, says) in table {
        let arguments: Vec<&str> = ["exec", "--quiet"].iter().chain(*arguments).copied().collect();
        let outcome = run(&vhost, &arguments).await;
        assert_eq!(outcome.code, Some(*code), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(says), "{arguments:?}: {outcome:?}");
        assert_eq!((outcome.stdout.as_str(), says.is_empty()), ("", outcome.stderr.is_empty()));
    }
}

async fn a_lock_that_is_held_is_waited_for_as_long_as_asked(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let inside = built::lockkeeper();
    let says = if place.slot(1).is_some() { "is held: try again later" } else { "no token" };
    for wait in [&["--no-wait"][..], &["--timeout", "300ms"]] {
        let inner = spoken(protocol, &[&["exec", LOCK], wait, &["--", "true"]].concat());
        let arguments = [&["exec", LOCK, "--", inside][..], &inner].concat();
        let outcome = run(&place, &arguments).await;
        assert_eq!(outcome.code, Some(75), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{outcome:?}");
        let is_counted = outcome.stderr.contains("ci.deploy: 1 of 1 held");
        assert!(is_counted || place.slot(1).is_none(), "{outcome:?}");
        for verb in [&["exec", LOCK][..], &["hold", LOCK]] {
            let command = if verb[0] == "exec" { &["--", "true"][..] } else { &[] };
            let other = [verb, wait, &["--conflict-exit-code", "7"], command].concat();
            let inner = spoken(protocol, &other);
            let outcome = run(&place, &[&["exec", LOCK, "--", inside][..], &inner].concat()).await;
            assert_eq!(outcome.code, Some(7), "{other:?}: {outcome:?}");
        }
    }
}

async fn the_command_finds_its_lock_in_the_environment_and_no_other(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    succeed(&place, &["semaphore", "create", LOCK, "--slots", "2", "--fencing"]).await;
    let show = "env | grep ^LOCK_ | sort; echo $AMQP_URL";
    let of = |text: &str, name: &str| {
        let prefix = format!("{name}=");
        text.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
    };
    let first = succeed(&place, &["exec", LOCK, "--", "sh", "-c", show]).await;
    let second = succeed(&place, &["exec", LOCK, "--", "sh", "-c", show]).await;
    assert_eq!(of(&first, "LOCK_NAME").as_deref(), Some(LOCK));
    assert_eq!(of(&first, "LOCK_SLOT").as_deref(), Some("1"));
    assert_ne!(of(&first, "LOCK_HOLDER_ID"), of(&second, "LOCK_HOLDER_ID"));
    let token = |text: &str| of(text, "LOCK_TOKEN").unwrap().parse::<u64>().unwrap();
    assert!(token(&second) > token(&first), "{first} {second}");

    // A mutex inside the semaphore: the semaphore's variables must not be visible.
    let inside = built::lockkeeper();
    let nested = ["exec", LOCK, "--", inside, "exec", "--mutex", "m", "--", "sh", "-c", show];
    let mut command = lockkeeper(&place, &nested);
    command.env("LOCK_SLOT", "77").env("LOCK_TOKEN_ID", "77");
    let inner = outcome(command).await.stdout;
    assert_eq!(of(&inner, "LOCK_NAME").as_deref(), Some("m"));
    for variable in ["LOCK_SLOT", "LOCK_TOKEN", "LOCK_TOKEN_ID"] {
        assert_eq!(of(&inner, variable), None, "{inner}");
    }

    // The broker's password must not be passed on.
    let url = place.url();
    let arguments = ["exec", LOCK, "--url", &url, "--", "sh", "-c", show];
    let mut command = lockkeeper(&place, &arguments);
    command.env_remove("AMQP_URL");
    let without = outcome(command).await;
    assert_eq!(without.stdout.lines().last(), Some(""), "{without:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_is_run_as_written_and_reads_our_input() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let strange = "$HOME *; exit 3 'x";
    let said = succeed(&vhost, &["exec", LOCK, "--", "printf", "%s|", strange, "--", "-x"]).await;
    assert_eq!(said, format!("{strange}|--|-x|"));

    let mut command = lockkeeper(&vhost, &["exec", LOCK, "--", "cat"]);
    let mut cat = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = cat.stdin.take().unwrap();
    let write = async move { input.write_all(&vec![b'x'; 300_000]).await.unwrap() };
    let ((), output) = tokio::join!(write, cat.wait_with_output());
    assert!(output.unwrap().stdout == vec![b'x'; 300_000], "all of it, and nothing else");
}

async fn nothing_of_ours_is_left_at_the_broker_afterwards(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let before = place.queues().await;
    for _ in 0..3 {
        succeed(&place, &["exec", LOCK, "--", "true"]).await;
        succeed(place.vhost(), &["exec", "--mutex", "ci.one", "--", "true"]).await;
    }
    assert_eq!(place.queues().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_inherits_no_descriptor_of_ours() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let list = ["ls", "/proc/self/fd"];
    let bare = tokio::process::Command::new(list[0]).arg(list[1]).output().await.unwrap().stdout;
    let under = succeed(&vhost, &[&["exec", LOCK, "--"], &list[..]].concat()).await;
    assert_eq!(under, String::from_utf8(bare).unwrap());
}
