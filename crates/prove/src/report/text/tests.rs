//! Tests the text of reports of small histories.

use super::*;
use crate::check::tests::Story;
use crate::history::{Rules, Verb};
use crate::report::Tested;

fn report(story: Story) -> Report {
    Report::new(&story.history(), None, &[]).unwrap()
}

fn text(report: &Report, directory: Option<&str>) -> String {
    Text { report, directory: directory.map(Path::new) }.to_string()
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn lists_the_missing_situations_of_a_grade() {
    let report = report(Story::new(Rules::ExclusiveQueue, 1).acquires(1).releases(1));
    let text = text(&report, None);
    let expected = "grade 0  not given  excludes: no violation, but the controls were not run; \
                    contended hand-overs 0 of 500; refusals 0 of 10; ";
    assert!(line(&text, "grade 0").starts_with(expected), "{text}");
    assert!(line(&text, "grade 1").ends_with("more in report.json"), "{text}");
    assert!(text.ends_with("prove that the implementation has no bugs.\n"), "{text}");
}

#[test]
fn prints_a_given_grade_with_its_bound() {
    let mut report = report(Story::new(Rules::ExclusiveQueue, 1).acquires(1).releases(1));
    (report.grades[0].given, report.grades[0].trials) = (Given::Yes, 2207);
    let tested =
        |right| Tested { bug: None, property: None, cause: None, found: 0, others: 0, right };
    report.controls = Some(vec![tested(true), tested(false)]);
    let text = text(&report, None);
    let expected = "grade 0  yes        excludes: 0 of 2,207 contended hand-overs caused a \
                    violation (95 % confidence: fewer than 1 in 735)";
    assert_eq!(line(&text, "grade 0"), expected);
    assert_eq!(line(&text, "test"), "test, seed 0, controls judged correctly: 1 of 2");
}

#[test]
fn names_a_violation_its_cause_and_its_picture() {
    let mut story = Story::new(Rules::ExclusiveQueue, 1).acquires(1);
    for process in 2..7 {
        story = story.ask(process, Verb::Acquire).granted(process, 1);
    }
    let report = report(story);
    let with = text(&report, Some("DIR"));
    let grade = "grade 0  NO         excludes: S2 CLIENT: process 2 was granted slot 1 while \
                 process 1 held it: the later holder owned nothing at the broker (and 9 more)";
    assert_eq!(line(&with, "grade 0"), grade);
    assert!(line(&with, "S2 CLIENT at ").ends_with("  DIR/violation-S2-1.svg"), "{with}");
    assert_eq!(line(&with, "S2: "), "S2: 2 more");
    assert_eq!(
        line(&with, "grade 1"),
        "grade 1  NO         survives crashes: grade 0 is not reached"
    );
    assert!(!text(&report, None).contains(".svg"));
}

#[test]
fn prints_the_violations_of_each_rule() {
    let mut story = Story::new(Rules::ExclusiveQueue, 1).own(9, "N-1-B");
    for process in 1..5 {
        story = story.ask(process as usize, Verb::Acquire).own(process, "N-2-B");
    }
    let report = report(story.request(9, "basic.publish", "N-1-A"));
    let text = text(&report, Some("DIR"));
    let rule = line(&text, "Rule CLIENT at ");
    assert!(rule.contains(": PS-6: process 9 published on the connection"), "{text}");
    let printed = text.lines().filter(|one| one.starts_with("Rule CLIENT") && one.contains("PS-9"));
    assert_eq!(printed.count(), SHOWN, "{text}");
    assert_eq!(line(&text, "Rule PS-9"), "Rule PS-9: 1 more");
    let pictures: Vec<&str> = report.pictures.iter().map(|one| &*one.file).collect();
    assert!(pictures.contains(&"violation-Rule-1.svg"), "{pictures:?}");
}

#[test]
fn groups_digits_by_thousands() {
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
}
