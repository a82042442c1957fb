//! Tests drivers that are a few lines of shell.

use super::*;

async fn spoken(cases: &str) -> Report {
    let command = format!(
        r#"sh -c 'while read ask; do case "$ask" in {cases} *) echo "{{\"fail\":\"unsupported\"}}";; esac; done'"#
    );
    speak(&command, &vec![], "prove.speak").await
}

const GOOD: &str = r#"
    *count*) echo "{\"ok\":{\"slots\":0}}";;
    *acquire*) echo "{\"ok\":{\"slot\":1}}";;
    *resize*1*|*verify*|*release*|*destroy*) echo "{\"ok\":{}}";;
"#;

#[tokio::test]
async fn a_good_driver_is_understood_without_notes() {
    let report = spoken(GOOD).await;
    assert!(report.is_understood() && report.notes.is_empty(), "{report}");
    assert!(report.offers(Verb::Resize) && !report.offers(Verb::Believes), "{report}");
    assert_eq!(report.offers.len(), ORDER.len());
    let shown = report.to_string();
    assert!(shown.contains("  acquire   yes  {\"ok\":{\"slot\":1}}\n"), "{shown}");
    assert!(shown.contains("  believes  no\n"), "{shown}");
}

#[tokio::test]
async fn an_error_ends_the_check_and_is_printed() {
    let report = spoken(r"*count*) echo connected;;").await;
    assert!(!report.is_understood());
    let shown = report.to_string();
    assert!(shown.contains("NOT understood"), "{shown}");
    assert!(shown.contains("everything else to stderr"), "{shown}");
    assert!(shown.contains("  destroy   –    not asked"), "{shown}");
}

#[tokio::test]
async fn a_driver_without_answers_is_stopped_at_the_time_limit() {
    let report = speak("sleep 100", &vec![], "prove.speak").await;
    assert!(matches!(report.misunderstood, Some(DriverError::NoAnswer { .. })), "{report}");
    assert!(report.took < LIMIT + Duration::from_secs(5), "{report}");
}

#[tokio::test]
async fn a_wrong_answer_is_reported_with_the_expected_one() {
    let slot_zero = spoken(&GOOD.replace(r#"\"slot\":1"#, r#"\"slot\":0"#)).await;
    assert!(slot_zero.to_string().contains("Expected slots from 1"), "{slot_zero}");
    let none = spoken(&GOOD.replace(r#"\"slot\":1"#, "")).await;
    assert!(none.to_string().contains("reports no slot"), "{none}");
    let refusing = GOOD.replace(
        r#"acquire*) echo "{\"ok\":{\"slot\":1}}""#,
        r#"acquire*) echo "{\"fail\":\"full\"}""#,
    );
    let refusing = spoken(&refusing).await;
    assert!(refusing.to_string().contains("after resize to 1"), "{refusing}");
    assert!(refusing.to_string().contains("not asked: acquire was not granted"), "{refusing}");
    let count = spoken(&GOOD.replace(r#"\"slots\":0"#, "")).await;
    assert!(count.to_string().contains("Add the number of slots"), "{count}");
}

#[tokio::test]
async fn an_administrator_alone_is_understood() {
    let report = spoken(r#"*resize*|*destroy*) echo "{\"ok\":{}}";;"#).await;
    assert!(report.is_understood(), "{report}");
    assert!(report.to_string().contains("can only administer"), "{report}");
}
