//! Writes a picture of a violation as SVG: lanes of processes above, lanes of slots below, and
//! the violation in red across both. Hover texts are `<title>` elements; there is no script. See
//! `picture` for the content.

use std::collections::BTreeSet;

use svg::Document;
use svg::node::element::{Definitions, Group, Line, Pattern, Rectangle, Text, Title};

use super::picture::{Bar, Picture, Place, Swimlane, Tick};

/// Width of the names of lanes.
const LEFT: usize = 120;
/// Width of half a column.
const HALF: usize = 28;
/// Height of a lane.
const LANE: usize = 54;
/// Distance of a bar from the top of its lane, and its height.
const BAR: (usize, usize) = (22, 18);
/// Smallest width of a picture.
const WIDTH: usize = 900;
/// Width of a character as a fraction of the font size: numerator and denominator.
const CHARACTER: (usize, usize) = (11, 20);
/// Font sizes.
const TITLE: usize = 14;
const SMALL: usize = 10;

/// Colours of processes, chosen so that most people can distinguish them.
const COLOURS: [&str; 6] = ["#4477aa", "#228833", "#b8860b", "#aa3377", "#00808a", "#8c564b"];
const RED: &str = "#cc0000";
const INK: &str = "#222222";
const GREY: &str = "#777777";

/// Returns the picture as an SVG file. The file is well-formed for any text in the picture.
pub(crate) fn render(picture: &Picture) -> String {
    let width = WIDTH.max(LEFT + 2 * HALF * picture.columns.len() + HALF);
    let titles = wrapped(&picture.title, characters(width - 2 * SMALL, TITLE));
    let subtitles = wrapped(&picture.subtitle, characters(width - 2 * SMALL, SMALL));
    let mut y = 0;
    let mut group = Group::new();
    for (lines, size) in [(&titles, TITLE), (&subtitles, SMALL)] {
        for line in lines {
            y += size + 6;
            let bold = if size == TITLE { "bold" } else { "normal" };
            group = group.add(text(SMALL, y, size, INK, line).set("font-weight", bold));
        }
    }
    // The label of the red interval.
    let red_label = y + 22;
    let top = red_label + 8;
    let (above, middle) = lanes("holds according to the processes", picture, false, top);
    let (below, bottom) = lanes("ownership at the broker", picture, true, middle);
    group = group.add(above);
    if !picture.broker.is_empty() {
        group = group.add(below);
    }
    group = group.add(red(picture, red_label, bottom, width)).add(axis(picture, bottom));
    let height = bottom + 24;
    Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "DejaVu Sans, Verdana, sans-serif")
        .add(Title::new(clean(&picture.title)))
        .add(hatching())
        .add(Rectangle::new().set("width", width).set("height", height).set("fill", "white"))
        .add(group)
        .to_string()
}

/// Returns the lanes of one half of the picture, and the y coordinate of its end.
fn lanes(name: &str, picture: &Picture, broker: bool, top: usize) -> (Group, usize) {
    let lanes = if broker { &picture.broker } else { &picture.processes };
    if lanes.is_empty() {
        return (Group::new(), top);
    }
    let mut y = top + SMALL + 16;
    let mut group = Group::new().add(text(SMALL, y, SMALL, GREY, name));
    y += 4;
    for one in lanes {
        group = group.add(lane(one, picture, y));
        y += LANE;
    }
    (group, y)
}

fn lane(lane: &Swimlane, picture: &Picture, top: usize) -> Group {
    let right = x(2 * picture.columns.len());
    let middle = top + BAR.0 + BAR.1 / 2;
    let mut group = Group::new()
        .add(line((SMALL, top + LANE), (right, top + LANE), "#dddddd"))
        .add(line((LEFT, middle), (right, middle), "#cccccc"))
        .add(text(SMALL, middle + 4, 11, INK, &fit(&lane.name, characters(LEFT - SMALL, 11))));
    for bar in &lane.bars {
        group = group.add(shape(bar, picture, top));
    }
    for fault in &lane.faults {
        group = group.add(mark(fault, picture.columns.len(), top, true));
    }
    for tick in &lane.ticks {
        group = group.add(mark(tick, picture.columns.len(), top, false));
    }
    group
}

fn shape(bar: &Bar, picture: &Picture, top: usize) -> Group {
    let (from, to) = (x(bar.from), x(bar.to));
    let fill = colour(picture, bar.process);
    let rectangle = Rectangle::new()
        .set("x", from)
        .set("y", top + BAR.0)
        .set("width", to - from)
        .set("height", BAR.1)
        .set("rx", 2)
        .set("fill", fill)
        .set("fill-opacity", if bar.certain { "0.75" } else { "0.2" })
        .set("stroke", fill);
    let colour = if bar.certain { "white" } else { INK };
    let room = characters((to - from).saturating_sub(8), SMALL);
    // If the label does not fit, only its first part is drawn.
    let first = bar.label.split(',').next().unwrap_or_default();
    let whole = bar.label.chars().count() <= room;
    let label = fit(if whole { &bar.label } else { first }, room);
    let label = text(from + 4, top + BAR.0 + 13, SMALL, colour, &label);
    hovering(&bar.hover).add(rectangle).add(label)
}

/// Draws a request, an answer or a fault.
fn mark(tick: &Tick, columns: usize, top: usize, fault: bool) -> Group {
    let at = x(tick.at);
    let mut group = hovering(&tick.hover);
    if fault {
        let hatched = Rectangle::new()
            .set("x", at.saturating_sub(HALF))
            .set("y", top)
            .set("width", 2 * HALF)
            .set("height", LANE)
            .set("fill", "url(#fault)");
        group = group.add(hatched);
    }
    let colour = if fault { RED } else { INK };
    // Faults are written below the bar, requests and answers above it.
    let y = if fault { top + LANE - 2 } else { top + 15 };
    // Near an edge, a wide label is moved into the picture.
    let most = x(2 * columns).saturating_sub(2 * HALF);
    let middle = if fault { at.min(most).max(x(2)) } else { at };
    let label = fit(&tick.label, characters(if fault { 4 * HALF } else { 2 * HALF }, SMALL - 1));
    group
        .add(
            line((at, top + BAR.0 - 4), (at, top + BAR.0 + BAR.1), colour)
                .set("stroke-opacity", "0.6"),
        )
        .add(text(middle, y, SMALL - 1, colour, &label).set("text-anchor", "middle"))
}

/// Draws the violation across all lanes, with its label above them.
fn red(picture: &Picture, label: usize, bottom: usize, width: usize) -> Group {
    let (from, to) = (x(picture.red.from), x(picture.red.to));
    let rectangle = Rectangle::new()
        .set("x", from)
        .set("y", label + 4)
        .set("width", to.saturating_sub(from).max(2))
        .set("height", bottom - label - 4)
        .set("fill", RED)
        .set("fill-opacity", "0.12")
        .set("stroke", RED);
    // At the right edge, the label is to the left of the position.
    let words = picture.red.label.chars().count() * 12 * CHARACTER.0 / CHARACTER.1;
    let (at, anchor) = if from + words > width { (to, "end") } else { (from, "start") };
    let label = text(at, label, 12, RED, &picture.red.label).set("text-anchor", anchor);
    // The elements below must stay reachable for the pointer.
    Group::new().set("pointer-events", "none").add(rectangle).add(label.set("font-weight", "bold"))
}

fn axis(picture: &Picture, top: usize) -> Group {
    let mut group = Group::new().add(text(SMALL, top + 15, SMALL, GREY, "time"));
    for (index, column) in picture.columns.iter().enumerate() {
        let label = text(x(2 * index + 1), top + 15, SMALL - 2, GREY, &column.time);
        group = group.add(hovering(&column.hover).add(label.set("text-anchor", "middle")));
    }
    group
}

fn hatching() -> Definitions {
    let stripe = Line::new()
        .set("x1", 0)
        .set("y1", 0)
        .set("x2", 0)
        .set("y2", 6)
        .set("stroke", RED)
        .set("stroke-opacity", "0.45")
        .set("stroke-width", 2);
    let pattern = Pattern::new()
        .set("id", "fault")
        .set("width", 6)
        .set("height", 6)
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .add(stripe);
    Definitions::new().add(pattern)
}

fn x(place: Place) -> usize {
    LEFT + HALF * place
}

/// Returns the colour of a process.
fn colour(picture: &Picture, process: u32) -> &'static str {
    let bars = picture.processes.iter().chain(&picture.broker).flat_map(|lane| &lane.bars);
    let all: BTreeSet<u32> = bars.map(|bar| bar.process).collect();
    COLOURS[all.range(..process).count() % COLOURS.len()]
}

fn hovering(hover: &str) -> Group {
    Group::new().add(Title::new(clean(hover)))
}

fn line(from: (usize, usize), to: (usize, usize), colour: &str) -> Line {
    Line::new()
        .set("x1", from.0)
        .set("y1", from.1)
        .set("x2", to.0)
        .set("y2", to.1)
        .set("stroke", colour)
}

fn text(x: usize, y: usize, size: usize, colour: &str, content: &str) -> Text {
    Text::new(clean(content)).set("x", x).set("y", y).set("font-size", size).set("fill", colour)
}

/// Returns the approximate number of characters of a font size that fit into a width.
fn characters(width: usize, size: usize) -> usize {
    width * CHARACTER.1 / (CHARACTER.0 * size)
}

/// Shortens a text to a number of characters.
fn fit(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    match characters {
        0..3 => String::new(),
        _ => text.chars().take(characters - 1).chain(['…']).collect(),
    }
}

/// Breaks a text into lines between words. Shortens a word that is longer than a line.
fn wrapped(text: &str, characters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let word = fit(word, characters);
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < characters => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Replaces characters that XML cannot contain. All others are escaped on output.
fn clean(text: &str) -> String {
    let permitted = |one: char| matches!(one, '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    text.chars().map(|one| if permitted(one) { one } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests;
