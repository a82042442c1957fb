//! Draws the figures: bars for each protocol on each broker. See the parent module for
//! the measurements.

use std::path::Path;

use plotters::prelude::*;

use super::figures::Figures;
use crate::Result;

/// Size of the picture, in pixels.
const SIZE: (u32, u32) = (960, 640);

/// One color for each bar of a panel.
const COLOURS: [RGBColor; 3] =
    [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0xff, 0x7f, 0x0e), RGBColor(0x2c, 0xa0, 0x2c)];

type Of = fn(&Figures) -> f64;

/// Writes an SVG.
pub fn draw(path: &Path, figures: &[Figures]) -> Result<()> {
    let panels: [(&str, Of); 6] = [
        ("acquire + release, per second", |f| f.acquire),
        ("16 clients, 4 slots, per second", |f| f.contended),
        ("verify, per second", |f| f.verify),
        ("hand-over, ms", |f| f.hand_over),
        ("0 to 100 slots, ms", |f| f.grow),
        ("100 to 0 slots, ms", |f| f.shrink),
    ];
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, rest) = root.split_vertically(40);
    let protocols = figures.len() / 2;
    for (number, figure) in figures.iter().take(protocols).enumerate() {
        let x = 30 + i32::try_from(number)? * 220;
        let colour = COLOURS[number % COLOURS.len()];
        legend.draw(&Rectangle::new([(x, 14), (x + 14, 28)], colour.filled()))?;
        legend.draw(&Text::new(figure.protocol, (x + 20, 14), ("sans-serif", 16)))?;
    }
    for (area, (title, of)) in rest.split_evenly((2, 3)).iter().zip(panels) {
        let most = figures.iter().map(of).fold(0.0, f64::max) * 1.15;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..2.0, 0.0..most)?;
        let brokers: Vec<&str> =
            figures.chunks(protocols).map(|group| group[0].broker.as_str()).collect();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_labels(5)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let width = 0.8 / f64::from(u32::try_from(protocols)?);
        for (group, figures) in (0u32..).zip(figures.chunks(protocols)) {
            for ((bar, figure), colour) in (0u32..).zip(figures).zip(COLOURS) {
                let left = f64::from(group) + 0.1 + width * f64::from(bar);
                let corners = [(left, 0.0), (left + width * 0.92, of(figure))];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            }
        }
        let (width, height) = area.dim_in_pixel();
        for (group, broker) in brokers.iter().enumerate() {
            let x = 76 + (i32::try_from(width)? - 90) * i32::try_from(group)? / 2;
            area.draw(&Text::new(*broker, (x, i32::try_from(height)? - 28), ("sans-serif", 13)))?;
        }
    }
    root.present()?;
    Ok(())
}
