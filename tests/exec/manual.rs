//! Help for typing commands: completions and manual pages. No server.

use crate::exec::commands::Scratch;
use crate::exec::{outcome, program};

#[tokio::test]
async fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = outcome(program(&[], &["completion", shell])).await;
        assert_eq!(script.code, Some(0), "{script:?}");
        assert!(script.stdout.contains("on-lost"), "{shell}");
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
    let nowhere = outcome(program(&[], &["man", "--output", "/nowhere"])).await;
    assert_eq!(nowhere.code, Some(73), "{nowhere:?}");
}
