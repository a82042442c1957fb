//! Help for typing commands: completions and manual pages, and the names of variables that are
//! not text. No server.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::exec::commands::Scratch;
use crate::exec::{outcome, program};

#[tokio::test]
async fn every_shell_gets_a_script_that_asks_the_program() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = outcome(program(&[], &["completion", shell])).await;
        assert_eq!(script.code, Some(0), "{script:?}");
        assert!(script.stdout.contains("LOCKKEEPER_COMPLETE"), "{shell}");
    }
}

#[tokio::test]
async fn every_verb_that_is_shown_has_a_manual_page() {
    let main = outcome(program(&[], &["man"])).await;
    assert!(main.stdout.contains(".TH lockkeeper 1"), "{main:?}");
    let scratch = Scratch::new();
    let folder = scratch.file("");
    let all = outcome(program(&[], &["man", "--output", &folder])).await;
    assert_eq!(all.code, Some(0), "{all:?}");
    let mut pages: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    for page in ["lockkeeper.1", "lockkeeper-exec.1", "lockkeeper-semaphore-grow.1"] {
        assert!(pages.contains(&page.to_owned()), "{page} in {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("guardian")), "{pages:?}");
    assert!(scratch.read("lockkeeper-exec.1").contains("kill\\-after"), "its options");
    // As `--help` has them, so that they can be copied.
    let exec = scratch.read("lockkeeper-exec.1").replace("\\-", "-");
    for text in [
        ".SH SYNOPSIS\nlockkeeper exec [OPTIONS] [LOCK] -- <COMMAND>...",
        ".SH EXAMPLES\n.nf\n",
        "\n  lockkeeper exec demo.deploy -- ./deploy.sh\n",
        "\n.fi\n",
        ".SH EXTRA\nExit codes: ",
    ] {
        assert!(exec.contains(text), "{text}: {exec}");
    }
    let nowhere = outcome(program(&[], &["man", "--output", "/nowhere"])).await;
    assert_eq!(nowhere.code, Some(73), "{nowhere:?}");
}

#[tokio::test]
async fn a_log_filter_that_can_not_be_parsed_is_named() {
    for (filter, is_wrong) in [("lockkeeper=loud", true), ("", false), ("lockkeeper=debug", false)]
    {
        let mut hold = program(&[], &["hold", "l", "--no-wait", "--url", "amqp://127.0.0.1:1"]);
        hold.env("LOCKKEEPER_LOG", filter);
        let ended = outcome(hold).await;
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert_eq!(ended.stderr.contains("LOCKKEEPER_LOG is no filter"), is_wrong, "{ended:?}");
    }
}

/// Such a variable never counts as unset: that could lead to another server.
#[tokio::test]
async fn a_variable_that_is_not_text_is_named_and_nothing_is_done() {
    let exec = &["exec", "l", "--", "true"][..];
    let count = &["semaphore", "count", "l", "--url", "amqps://h"];
    let queue = &["queue", "exists", "q"];
    for (name, verb) in [
        ("AMQP_URL", exec),
        ("RABBITMQ_MANAGEMENT_URL", exec),
        ("RABBITMQ_TLS_CA_FILE", count),
        ("RABBITMQ_TLS_KEY_FILE", count),
        ("REDIS_URL", queue),
        ("REDIS_SERVER", queue),
        ("REDIS_PORT", queue),
        ("REDIS_DB", queue),
        ("REDIS_TLS_CA_FILE", queue),
        ("PRESSURE_PREFIX", queue),
        ("REDIS_URL", &["operator"]),
        ("LOCKKEEPER_WATCH_NAMESPACE", &["operator"]),
        ("LOCKKEEPER_LEADER_ELECT", &["operator"]),
        ("LOCKKEEPER_OBSERVE_INTERVAL", &["operator"]),
        ("LOCK_SOCKET", &["verify"]),
    ] {
        let mut command = program(&[], verb);
        for other in ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"] {
            command.env_remove(other);
        }
        command.env(name, OsStr::from_bytes(b"redis://:hush\xe9@127.0.0.1:1/0"));
        let refused = outcome(command).await;
        assert_eq!(refused.code, Some(64), "{name}: {refused:?}");
        assert!(refused.stderr.contains(&format!("variable {name} is not UTF-8")), "{refused:?}");
        assert!(!refused.stderr.contains("hush"), "{refused:?}");
    }
}
