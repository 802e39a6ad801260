//! `quality_checks`: computes grey-level statistics of images.
use crate::Operation;
use crate::backend::{ImageInput, OutputView};
use crate::graphs::{Parameter, Row};
use crate::models::Model;
use std::sync::Arc;
use vision::Frame;
use vision::quality::GreyStatistics;

#[derive(Clone, Copy, Debug)]
pub struct StatisticsModel;

impl Model for StatisticsModel {
    type Input = Arc<Frame>;
    type Output = GreyStatistics;

    fn operation(&self) -> Operation {
        Operation::QualityChecks
    }

    fn shape(&self, input: &Arc<Frame>) -> [usize; 3] {
        [3, input.height() as usize, input.width() as usize]
    }

    fn image_input<'a>(&self, input: &'a Arc<Frame>) -> Option<ImageInput<'a>> {
        let (rows, columns) = (input.height() as usize, input.width() as usize);
        let parameters =
            vec![neighbours(rows, -1), neighbours(rows, 1), neighbours(columns, -1), neighbours(columns, 1)];
        Some(ImageInput { frame: input, parameters, program: 0 })
    }

    fn read(
        &self,
        input: &Arc<Frame>,
        outputs: &[OutputView<'_>],
        _: usize,
        _: usize,
    ) -> Result<GreyStatistics, String> {
        let (width, height) = (input.width() as usize, input.height() as usize);
        let [output] = outputs else { return Err(format!("{} outputs instead of one", outputs.len())) };
        if output.shape != [Row::COUNT, height] || output.data.iter().any(|v| !v.is_finite()) {
            return Err(format!("the output {:?} does not contain the sums of {height} rows", output.shape));
        }
        let row = |row: Row| output.data[row as usize * height..][..height].iter().map(|v| f64::from(*v));
        let sum = |kind: Row| row(kind).sum::<f64>();
        let (length, count) = (width as f64, (width * height) as f64);
        let mean = sum(Row::Grey) / count;
        // The sum of squares is the sum within rows plus the sum between row means (Chan 1979).
        let between: f64 = row(Row::Grey).map(|grey| length * (grey / length - mean).powi(2)).sum();
        let laplacian = sum(Row::Laplacian) / count;
        Ok(GreyStatistics {
            laplacian_variance: (sum(Row::LaplacianSquares) / count - laplacian * laplacian).max(0.0),
            tenengrad: sum(Row::Gradient) / count,
            mean,
            std: ((sum(Row::Spread) + between) / count).sqrt(),
            clipped: sum(Row::Clipped) / count,
        })
    }
}

/// Returns the neighbour of each of `length` pixels at distance `step` (-1 or 1). The border is
/// reflected without repeating its pixel (reflect-101). A single pixel is its own neighbour.
fn neighbours(length: usize, step: i64) -> Parameter {
    let last = length as i64 - 1;
    let at = |i: i64| {
        let moved = (i + step).abs();
        if moved > last { (2 * last - moved).max(0) } else { moved }
    };
    let data = (0..=last).map(|i| at(i) as i32).collect();
    Parameter::Indices { shape: vec![length], data }
}
