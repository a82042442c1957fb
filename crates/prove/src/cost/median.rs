//! The median of measured values.

/// Returns the median, or `None` for an empty list. For an even number of values it is the mean
/// of the two middle values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Returns the lower median, which is one of the values, or 0 for an empty list.
pub fn middle(values: impl IntoIterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.into_iter().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: Option<f64>, other: f64) -> bool {
        one.is_some_and(|one| (one - other).abs() < 1e-9)
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert!(near(median(&[3.0]), 3.0));
        assert!(near(median(&[9.0, 1.0, 2.0]), 2.0));
        assert!(near(median(&[9.0, 1.0, 2.0, 4.0]), 3.0));
        assert_eq!((middle([]), middle([7, 1, 5]), middle([8, 1, 5, 7])), (0, 5, 5));
    }
}
