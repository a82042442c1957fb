//! Draws the growth, on logarithmic axes: a line that is parallel to the diagonal is linear growth.

use std::path::Path;

use plotters::prelude::*;

use super::figures::{Figures, ROWS};
use crate::Result;
use crate::decades::decades;

/// Size of the picture, in pixels.
const SIZE: (u32, u32) = (960, 480);

/// A color for each line.
const COLOURS: [RGBColor; 3] =
    [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0xff, 0x7f, 0x0e), RGBColor(0x2c, 0xa0, 0x2c)];

/// Writes an SVG with a panel for slots and one for objects.
pub fn draw(path: &Path, figures: &[Figures]) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, kind) in root.split_evenly((1, 2)).iter().zip(["slots", "objects"]) {
        let rows = || ROWS.into_iter().filter(|(name, ..)| name.starts_with(kind));
        let values = rows().flat_map(|(_, _, of, _)| figures.iter().map(of));
        let sizes = || figures.iter().map(|figures| f64::from(figures.size));
        let (smallest, largest) =
            (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
        let mut chart = ChartBuilder::on(area)
            .caption(format!("by the number of {kind}"), ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(56)
            .build_cartesian_2d((smallest..largest).log_scale(), decades(values).log_scale())?;
        chart.configure_mesh().light_line_style(TRANSPARENT).draw()?;
        for ((name, unit, of, _), colour) in rows().zip(COLOURS) {
            let points = figures.iter().map(|figures| (f64::from(figures.size), of(figures)));
            let name = name.trim_start_matches(kind).trim_start_matches(": ");
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
                .label(format!("{name}, {unit}"))
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .label_font(("sans-serif", 13))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
