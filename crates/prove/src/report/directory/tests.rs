//! Tests reports in a temporary directory.

use super::*;
use crate::check::tests::Story;
use crate::history::{Rules, Verb};

/// A directory that is removed at the end of the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        let name = format!("lockkeeper-prove-{:016x}", rand::random::<u64>());
        Self(std::env::temp_dir().join(name))
    }

    fn pictures(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(PICTURE.1)).collect();
        names.sort();
        names
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn writes_the_run_the_report_and_a_few_pictures_of_each_property() {
    let directory = Temporary::new();
    let mut story = Story::new(Rules::ExclusiveQueue, 1).acquires(1);
    for process in 2..7 {
        story = story.ask(process, Verb::Acquire).granted(process, 1);
    }
    let history = story.history();
    let report = Report::new(&history, None, &["a trouble".to_owned()]).unwrap();
    write(&directory.0, &history, &report).unwrap();
    let numbered =
        |property: &'static str| (1..=3).map(move |i| format!("violation-{property}-{i}.svg"));
    let expected: Vec<String> = numbered("S2").chain(numbered("S4")).collect();
    assert_eq!(directory.pictures(), expected);

    let json = fs::read(directory.0.join(REPORT)).unwrap();
    let mut read: Report = serde_json::from_slice(&json).unwrap();
    for (read, drawn) in read.pictures.iter_mut().zip(&report.pictures) {
        read.svg = fs::read_to_string(directory.0.join(&drawn.file)).unwrap();
    }
    assert_eq!(read, report);

    let file = io::BufReader::new(File::open(directory.0.join(RUN)).unwrap());
    assert_eq!(History::read(file).unwrap(), history);
}

#[test]
fn removes_the_pictures_of_an_earlier_report() {
    let directory = Temporary::new();
    let put = |story: Story| {
        let history = story.history();
        let report = Report::new(&history, None, &[]).unwrap();
        write(&directory.0, &history, &report).unwrap();
    };
    let story = || Story::new(Rules::ExclusiveQueue, 1).acquires(1);
    put(story().acquires(2));
    assert_eq!(directory.pictures(), ["violation-S1-1.svg", "violation-S2-1.svg"]);
    fs::write(directory.0.join("mine.svg"), "").unwrap();
    put(story().releases(1));
    assert_eq!(directory.pictures(), ["mine.svg"]);
}

#[test]
fn names_the_file_that_cannot_be_written() {
    let directory = Temporary::new();
    fs::write(&directory.0, "a file").unwrap();
    let history = Story::new(Rules::None, 1).history();
    let report = Report::new(&history, None, &[]).unwrap();
    let error = write(&directory.0, &history, &report).unwrap_err();
    assert_eq!(error.file, directory.0);
    fs::remove_file(&directory.0).unwrap();
}
