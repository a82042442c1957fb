//! Statistics of measured times: the median, and a slope that is robust against outliers. See
//! `report` for how slopes become round trips.

use serde::{Deserialize, Serialize};

/// The slope of a line through points, and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// The slope: the median of the slopes of all pairs of points (Theil–Sen estimator).
    pub value: f64,
    /// The lower quartile of the slopes of all pairs.
    pub lower: f64,
    /// The upper quartile of the slopes of all pairs.
    pub upper: f64,
}

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

/// Returns the slope of a line through the points of all groups, or `None` for fewer than two
/// groups. Points of the same group form no pair, because their abscissas differ only by chance.
pub fn slope(groups: &[Vec<(f64, f64)>]) -> Option<Slope> {
    let mut slopes = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        for (x, y) in group {
            for (other_x, other_y) in groups[index + 1..].iter().flatten() {
                if (other_x - x).abs() > f64::EPSILON {
                    slopes.push((other_y - y) / (other_x - x));
                }
            }
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let quarter = slopes.len() / 4;
    let (lower, upper) = (*slopes.get(quarter)?, *slopes.iter().rev().nth(quarter)?);
    Some(Slope { value: median(&slopes)?, lower, upper })
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

    /// Returns one group for each point.
    fn groups(points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        points.iter().map(|point| vec![*point]).collect()
    }

    #[test]
    fn the_slope_of_a_line_is_exact() {
        let line = slope(&groups(&[(0.0, 1.0), (10.0, 21.0), (20.0, 41.0)])).unwrap();
        assert!(near(Some(line.value), 2.0) && near(Some(line.lower), line.upper), "{line:?}");
    }

    #[test]
    fn an_outlier_does_not_change_the_slope() {
        let mut points: Vec<(f64, f64)> =
            (0..9).map(|x| (f64::from(x), 3.0 * f64::from(x))).collect();
        points[4].1 = 500.0;
        let spoilt = slope(&groups(&points)).unwrap();
        assert!(near(Some(spoilt.value), 3.0) && near(Some(spoilt.lower), 3.0), "{spoilt:?}");
    }

    #[test]
    fn scattered_points_have_an_uncertain_slope() {
        let scattered = groups(&[(0.0, 0.0), (10.0, 100.0), (20.0, 30.0), (30.0, 400.0)]);
        let scattered = slope(&scattered).unwrap();
        assert!(scattered.upper - scattered.lower > 10.0, "{scattered:?}");
    }

    #[test]
    fn points_of_one_group_make_no_pair() {
        assert_eq!(slope(&[vec![(1.0, 1.0), (2.0, 9.0)]]), None);
        assert_eq!(slope(&groups(&[(1.0, 1.0), (1.0, 2.0)])), None);
        let two = slope(&[vec![(0.0, 0.0), (0.1, 0.0)], vec![(10.0, 10.0)]]).unwrap();
        assert!(two.lower > 0.9 && two.upper < 1.1, "{two:?}");
    }
}
