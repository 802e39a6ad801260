//! Estimates the head pose from five landmarks.
//!
//! The method is POS, the linear step of DeMenthon & Davis 1995 ("Model-based object pose in 25
//! lines of code"). It fits a rigid model of five points to the landmarks. With a scaled
//! orthographic camera, the centred image points are a 2x3 matrix times the centred model points.
//! The least-squares matrix has a closed form. It is decomposed as `Rz(roll) Ry(yaw) Rx(pitch)`:
//! pitch first, then yaw about the vertical axis, then roll in the image plane. A face that is
//! longer or wider than the model changes only the lengths of the rows, and thus not the angles.
//!
//! The model is an average adult, in millimetres. The distance of the pupils is 63 (Dodgson 2004).
//! The nose tip is 40 below and 25 in front of the eyes. The mouth corners are 73 below and 5
//! behind the eyes, at a distance of 52. Proportions in the image plane are those of the ArcFace
//! template; depths are from Farkas 1994. The accuracy of the landmarks limits that of the angles
//! to about 10 degrees.

use super::{Pose, unit};
use crate::Landmarks;

/// The points of the model: x to the right in the image, y down, z away from the camera.
const FACE_MODEL: [[f64; 3]; 5] =
    [[-31.5, 0.0, 0.0], [31.5, 0.0, 0.0], [0.0, 40.0, -25.0], [-26.0, 73.0, 5.0], [26.0, 73.0, 5.0]];

/// Estimates the pose of a face. If the landmarks are not finite or all coincide, the score and all
/// angles are 0.
pub fn estimate(landmarks: &Landmarks) -> Pose {
    let Some([[xx, xy, xz], [yx, yy, yz]]) = fit_camera(landmarks) else { return Pose::default() };
    let roll = yx.atan2(xx);
    let (sin, cos) = roll.sin_cos();
    // The scaled rotation without roll: s [cos ψ, sin ψ sin φ, sin ψ cos φ; 0, cos φ, -sin φ].
    let [ux, uy, uz] = [cos * xx + sin * yx, cos * xy + sin * yy, cos * xz + sin * yz];
    let [vy, vz] = [cos * yy - sin * xy, cos * yz - sin * xz];
    let phi = (-vz).atan2(vy);
    let psi = (uy * phi.sin() + uz * phi.cos()).atan2(ux);
    let off_axis = (psi.cos() * phi.cos()).clamp(-1.0, 1.0).acos().to_degrees();
    Pose {
        value: unit(1.0 - off_axis / 90.0),
        // A positive `psi` turns the face to the person's right; a positive `phi` turns it down.
        yaw: -psi.to_degrees() as f32,
        pitch: -phi.to_degrees() as f32,
        roll: roll.to_degrees() as f32,
    }
}

/// Returns the rows of the least-squares 2x3 scaled orthographic matrix.
fn fit_camera(landmarks: &Landmarks) -> Option<[[f64; 3]; 2]> {
    let mean = |axis: usize| FACE_MODEL.iter().map(|p| p[axis]).sum::<f64>() / 5.0;
    let (mean_y, mean_z) = (mean(1), mean(2));
    // The model is symmetric about x = 0, so x is not correlated with y and z. The normal equations
    // are therefore one equation for x and a 2x2 system for y and z.
    let (mut sxx, mut syy, mut syz, mut szz) = (0.0, 0.0, 0.0, 0.0);
    let mut sums = [[0.0; 3]; 2];
    for ([x, y, z], point) in FACE_MODEL.iter().zip(landmarks) {
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

    /// Projects the rotated model with a scaled orthographic camera. `stretch` scales its height.
    fn project(yaw: f64, pitch: f64, roll: f64, stretch: f64) -> Landmarks {
        let (psi, phi, roll) = (-yaw.to_radians(), -pitch.to_radians(), roll.to_radians());
        FACE_MODEL.map(|[x, y, z]| {
            let y = y * stretch;
            let (y, z) = (y * phi.cos() - z * phi.sin(), y * phi.sin() + z * phi.cos());
            let x = x * psi.cos() + z * psi.sin();
            let (x, y) = (x * roll.cos() - y * roll.sin(), x * roll.sin() + y * roll.cos());
            Point { x: (400.0 + 1.7 * x) as f32, y: (300.0 + 1.7 * y) as f32 }
        })
    }

    #[test]
    fn pose_recovers_known_rotations() {
        for yaw in [-60.0, -20.0, 0.0, 35.0] {
            for pitch in [-40.0, 0.0, 25.0] {
                for roll in [-170.0, -30.0, 0.0, 90.0] {
                    let pose = estimate(&project(yaw, pitch, roll, 1.0));
                    let errors = [pose.yaw - yaw as f32, pose.pitch - pitch as f32, pose.roll - roll as f32];
                    assert!(errors.iter().all(|v| v.abs() < 0.1), "{yaw} {pitch} {roll}: {pose:?}");
                }
            }
        }
    }

    #[test]
    fn pose_angles_have_documented_signs() {
        let frontal = project(0.0, 0.0, 0.0, 1.0);
        let pose_with_nose_offset = |dx: f32, dy: f32| {
            let mut landmarks = frontal;
            landmarks[2] = Point { x: frontal[2].x + dx, y: frontal[2].y + dy };
            estimate(&landmarks)
        };
        // The person's left is on the right of the image.
        assert!(pose_with_nose_offset(10.0, 0.0).yaw > 5.0);
        assert!(pose_with_nose_offset(-10.0, 0.0).yaw < -5.0);
        assert!(pose_with_nose_offset(0.0, -10.0).pitch > 5.0);
        assert!(pose_with_nose_offset(0.0, 10.0).pitch < -5.0);
        let rolled = project(0.0, 0.0, 20.0, 1.0);
        assert!(rolled[1].y > frontal[1].y, "clockwise: the eye on the right of the image is lower");
    }

    #[test]
    fn longer_face_does_not_change_pitch() {
        for stretch in [0.88, 1.12] {
            let pose = estimate(&project(0.0, 0.0, 0.0, stretch));
            assert!(pose.pitch.abs() < 1.0 && pose.yaw.abs() < 0.1, "{stretch}: {pose:?}");
        }
    }

    #[test]
    fn pose_score_falls_with_yaw_and_pitch() {
        let scores = |pose: fn(f64) -> Landmarks| -> Vec<f32> {
            (0..8).map(|step| estimate(&pose(f64::from(step) * 10.0)).value).collect()
        };
        for falling in [scores(|v| project(v, 0.0, 0.0, 1.0)), scores(|v| project(0.0, -v, 0.0, 1.0))] {
            assert!(falling[0] > 0.999 && falling.windows(2).all(|pair| pair[0] > pair[1]), "{falling:?}");
        }
        // Roll does not lower the score, because alignment removes it.
        assert!(estimate(&project(0.0, 0.0, 45.0, 1.0)).value > 0.999);
    }

    #[test]
    fn degenerate_landmarks_score_zero() {
        let mut not_finite = project(0.0, 0.0, 0.0, 1.0);
        not_finite[3].x = f32::NAN;
        assert_eq!(estimate(&not_finite), Pose::default());
        assert_eq!(estimate(&[Point { x: 7.0, y: 7.0 }; 5]).value, 0.0);
    }
}
