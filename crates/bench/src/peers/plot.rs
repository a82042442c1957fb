//! Draws the figures: a bar for each peer, on logarithmic axes, because the peers are orders of
//! magnitude apart. See the parent module for the measurements.

use std::path::Path;

use plotters::prelude::*;

use super::figures::Figures;
use crate::Result;
use crate::decades::decades;

/// Size of the picture, in pixels.
const SIZE: (u32, u32) = (960, 640);

/// Ours, and the peers.
const COLOURS: [RGBColor; 2] = [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0xff, 0x7f, 0x0e)];

/// Number of our protocols, which are the first rows.
const OURS: usize = crate::protocols::PROTOCOLS.len();

/// Width of the names to the left of the bars.
const NAMES: u32 = 130;

type Of = fn(&Figures) -> f64;

/// Writes an SVG.
pub fn draw(path: &Path, figures: &[Figures]) -> Result<()> {
    let panels: [(&str, Of); 6] = [
        ("acquire + release, per second", |f| f.alone),
        ("16 clients, per second", |f| f.contended),
        ("hand-over, median, ms", |f| f.hand_over),
        ("hand-over, p99, ms", |f| f.hand_over_p99),
        ("kill -9 to the next holder, ms", |f| f.kill),
        ("a waiter: bytes per minute", |f| f.bytes),
    ];
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, (title, of)) in root.split_evenly((3, 2)).iter().zip(panels) {
        let range = decades(figures.iter().map(of).filter(|&value| value > 0.0));
        let least = range.start;
        let rows = f64::from(u32::try_from(figures.len())?);
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 16))
            .margin(10)
            .margin_right(30)
            .x_label_area_size(24)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(range.log_scale(), rows..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_label_formatter(&|value| value.to_string())
            .light_line_style(TRANSPARENT)
            .draw()?;
        let mut names = Vec::new();
        for (row, figure) in (0u32..).zip(figures) {
            let top = f64::from(row) + 0.15;
            let colour = COLOURS[usize::from(row as usize >= OURS)];
            let corners = [(least, top), (of(figure).max(least), top + 0.7)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            names.push((figure.name, chart.backend_coord(&(least, top + 0.15))));
        }
        for (name, (_, y)) in names {
            let (_, top) = area.get_base_pixel();
            area.draw(&Text::new(name, (10, y - top), ("sans-serif", 13)))?;
        }
    }
    root.present()?;
    Ok(())
}
