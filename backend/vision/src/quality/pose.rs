//! Estimates the head pose from five landmarks.
//!
//! POS fits a rigid five-point face to the landmarks. It is the linear step of DeMenthon & Davis
//! 1995 ("Model-based object pose in 25 lines of code"). Under a scaled orthographic camera the
//! centred image points are a 2x3 matrix times the centred model points. The least-squares matrix
//! has a closed form. The rotation is read from it as `Rz(roll) Ry(yaw) Rx(pitch)`: pitch first,
//! then yaw about the vertical axis, then roll in the image plane. Each angle is computed from one
//! row of the matrix. A face that is longer or wider than the model only changes the lengths of the
//! rows. It therefore causes no pitch or yaw.
//!
//! The model, in millimetres, is an average adult. The pupils are 63 apart (Dodgson 2004). The nose
//! tip is 40 below and 25 in front of the eyes. The mouth corners are 52 apart, 73 below and 5
//! behind the eyes. Proportions in the plane are those of the ArcFace template; depths are as in
//! Farkas 1994. The accuracy is about 10 degrees, limited by the detector's landmarks.

use super::{Pose, unit};
use crate::Landmarks;

/// Model points: x to the right in the image, y down, z away from the camera.
const MODEL: [[f64; 3]; 5] =
    [[-31.5, 0.0, 0.0], [31.5, 0.0, 0.0], [0.0, 40.0, -25.0], [-26.0, 73.0, 5.0], [26.0, 73.0, 5.0]];

/// Estimates the pose of a face. Landmarks that are not finite or all coincide result in the worst
/// score: value 0 with all angles 0.
pub fn estimate(landmarks: &Landmarks) -> Pose {
    let Some([[xx, xy, xz], [yx, yy, yz]]) = fit_camera(landmarks) else { return Pose::default() };
    let roll = yx.atan2(xx);
    let (sin, cos) = roll.sin_cos();
    // The matrix without roll: s [cos ψ, sin ψ sin φ, sin ψ cos φ; 0, cos φ, -sin φ].
    let [ux, uy, uz] = [cos * xx + sin * yx, cos * xy + sin * yy, cos * xz + sin * yz];
    let [vy, vz] = [cos * yy - sin * xy, cos * yz - sin * xz];
    let nod = (-vz).atan2(vy);
    let turn = (uy * nod.sin() + uz * nod.cos()).atan2(ux);
    let off_axis = (turn.cos() * nod.cos()).clamp(-1.0, 1.0).acos().to_degrees();
    Pose {
        value: unit(1.0 - off_axis / 90.0),
        // A right-handed rotation about the axis that points down moves the nose to the person's
        // right; a right-handed pitch moves it down.
        yaw: -turn.to_degrees() as f32,
        pitch: -nod.to_degrees() as f32,
        roll: roll.to_degrees() as f32,
    }
}

/// Returns the rows of the least-squares 2x3 scaled orthographic matrix.
fn fit_camera(landmarks: &Landmarks) -> Option<[[f64; 3]; 2]> {
    let mean = |axis: usize| MODEL.iter().map(|p| p[axis]).sum::<f64>() / 5.0;
    let (mean_y, mean_z) = (mean(1), mean(2));
    // The model is symmetric about x = 0. Therefore x is independent of y and z, and the normal
    // equations separate into one number and a 2x2 system.
    let (mut sxx, mut syy, mut syz, mut szz) = (0.0, 0.0, 0.0, 0.0);
    let mut sums = [[0.0; 3]; 2];
    for ([x, y, z], point) in MODEL.iter().zip(landmarks) {
        let (y, z) = (y - mean_y, z - mean_z);
        sxx += x * x;
        syy += y * y;
        syz += y * z;
        szz += z * z;
        for (sum, coordinate) in sums.iter_mut().zip([point.x, point.y]) {
            let coordinate = f64::from(coordinate);
            *sum = [sum[0] + x * coordinate, sum[1] + y * coordinate, sum[2] + z * coordinate];
        }
    }
    let determinant = syy * szz - syz * syz;
    let rows =
        sums.map(|[x, y, z]| [x / sxx, (szz * y - syz * z) / determinant, (syy * z - syz * y) / determinant]);
    let flat = rows.as_flattened();
    (flat.iter().all(|v| v.is_finite()) && flat.iter().any(|v| v.abs() > 1e-9)).then_some(rows)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Point;

    /// Projects the model with a scaled orthographic camera, rotated as in this module.
    fn seen(yaw: f64, pitch: f64, roll: f64, taller: f64) -> Landmarks {
        let (turn, nod, lean) = (-yaw.to_radians(), -pitch.to_radians(), roll.to_radians());
        MODEL.map(|[x, y, z]| {
            let y = y * taller;
            let (y, z) = (y * nod.cos() - z * nod.sin(), y * nod.sin() + z * nod.cos());
            let x = x * turn.cos() + z * turn.sin();
            let (x, y) = (x * lean.cos() - y * lean.sin(), x * lean.sin() + y * lean.cos());
            Point { x: (400.0 + 1.7 * x) as f32, y: (300.0 + 1.7 * y) as f32 }
        })
    }

    #[test]
    fn pose_recovers_known_rotations() {
        for yaw in [-60.0, -20.0, 0.0, 35.0] {
            for pitch in [-40.0, 0.0, 25.0] {
                for roll in [-170.0, -30.0, 0.0, 90.0] {
                    let pose = estimate(&seen(yaw, pitch, roll, 1.0));
                    let off = [pose.yaw - yaw as f32, pose.pitch - pitch as f32, pose.roll - roll as f32];
                    assert!(off.iter().all(|v| v.abs() < 0.1), "{yaw} {pitch} {roll}: {pose:?}");
                }
            }
        }
    }

    #[test]
    fn pose_angles_have_documented_signs() {
        let frontal = seen(0.0, 0.0, 0.0, 1.0);
        let moved = |dx: f32, dy: f32| {
            let mut landmarks = frontal;
            landmarks[2] = Point { x: frontal[2].x + dx, y: frontal[2].y + dy };
            estimate(&landmarks)
        };
        // The person's left is on the right of the image.
        assert!(moved(10.0, 0.0).yaw > 5.0 && moved(-10.0, 0.0).yaw < -5.0);
        assert!(moved(0.0, -10.0).pitch > 5.0 && moved(0.0, 10.0).pitch < -5.0);
        assert!(seen(0.0, 0.0, 20.0, 1.0)[1].y > frontal[1].y, "clockwise: the eye on the right moves down");
    }

    #[test]
    fn longer_face_does_not_change_pitch() {
        for taller in [0.88, 1.12] {
            let pose = estimate(&seen(0.0, 0.0, 0.0, taller));
            assert!(pose.pitch.abs() < 1.0 && pose.yaw.abs() < 0.1, "{taller}: {pose:?}");
        }
    }

    #[test]
    fn pose_score_falls_with_yaw_and_pitch() {
        let scores = |pose: fn(f64) -> Landmarks| -> Vec<f32> {
            (0..8).map(|step| estimate(&pose(f64::from(step) * 10.0)).value).collect()
        };
        for falling in [scores(|v| seen(v, 0.0, 0.0, 1.0)), scores(|v| seen(0.0, -v, 0.0, 1.0))] {
            assert!(falling[0] > 0.999 && falling.windows(2).all(|pair| pair[0] > pair[1]), "{falling:?}");
        }
        // Alignment removes roll, so roll does not lower the score.
        assert!(estimate(&seen(0.0, 0.0, 45.0, 1.0)).value > 0.999);
    }

    #[test]
    fn degenerate_landmarks_score_zero() {
        let mut odd = seen(0.0, 0.0, 0.0, 1.0);
        odd[3].x = f32::NAN;
        assert_eq!(estimate(&odd), Pose::default());
        assert_eq!(estimate(&[Point { x: 7.0, y: 7.0 }; 5]).value, 0.0);
    }
}
