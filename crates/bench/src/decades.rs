//! The range of a logarithmic axis, for `growth` and `peers`.

use std::ops::Range;

/// Returns the full decades that contain these positive values.
pub fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(0.0, f64::max);
    10f64.powf(least.log10().floor())..10f64.powf(most.log10().ceil())
}
