//! Tests pictures by reading them back with an XML parser.

use proptest::prelude::*;
use roxmltree::Document;

use super::*;
use crate::report::picture::{Column, Red};

/// Returns a picture in which every text is `text`.
fn picture(text: &str, columns: usize) -> Picture {
    let text = text.to_owned();
    let tick = Tick { at: 1, label: text.clone(), hover: text.clone() };
    let bar =
        Bar { process: 1, from: 1, to: 4, certain: true, label: text.clone(), hover: text.clone() };
    let lane = Swimlane {
        name: text.clone(),
        bars: vec![bar],
        ticks: vec![tick.clone()],
        faults: vec![tick],
    };
    Picture {
        title: text.clone(),
        subtitle: text.clone(),
        columns: vec![Column { time: text.clone(), hover: text.clone() }; columns],
        processes: vec![lane.clone()],
        broker: vec![lane],
        red: Red { from: 1, to: 3, label: text },
    }
}

proptest! {
    #[test]
    fn is_well_formed_whatever_the_texts_contain(text in any::<String>(), columns in 0_usize..31) {
        let svg = render(&picture(&text, columns));
        prop_assert!(Document::parse(&svg).is_ok(), "{svg}");
    }
}

#[test]
fn keeps_markup_control_characters_and_scripts_out() {
    let svg = render(&picture("a<script>&\"'\u{0}\u{1b}]]>\u{ffff}b", 2));
    let read = Document::parse(&svg).unwrap();
    assert_eq!(read.descendants().filter(|node| node.has_tag_name("script")).count(), 0);
    let titles = read.descendants().filter(|node| node.tag_name().name() == "title");
    let titles: Vec<&str> = titles.filter_map(|title| title.text()).map(str::trim).collect();
    assert!(titles.len() >= 7, "{titles:?}");
    for title in titles {
        assert_eq!(title, "a<script>&\"'\u{fffd}\u{fffd}]]>\u{fffd}b");
    }
}

#[test]
fn draws_nothing_outside_of_the_picture() {
    let svg = render(&picture("a text that is longer than most of the others are", 30));
    let read = Document::parse(&svg).unwrap();
    let number = |node: roxmltree::Node<'_, '_>, name: &str| -> usize {
        node.attribute(name).unwrap_or("0").parse().unwrap()
    };
    let root = read.root_element();
    let (width, height) = (number(root, "width"), number(root, "height"));
    for node in read.descendants().filter(|node| node.tag_name().name() == "rect") {
        assert!(number(node, "x") + number(node, "width") <= width);
        assert!(number(node, "y") + number(node, "height") <= height);
    }
    for node in read.descendants().filter(|node| node.tag_name().name() == "text") {
        assert!(number(node, "y") < height && number(node, "x") < width);
    }
}

#[test]
fn shortens_text_that_does_not_fit() {
    assert_eq!(fit("declare-ok", 10), "declare-ok");
    assert_eq!(fit("declare-ok!", 10), "declare-o…");
    assert_eq!(fit("declare-ok", 2), "");
    assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
    assert_eq!(wrapped("extraordinary", 7), ["extrao…"]);
}
