//! Decides at a small scale whether an image is searched for faces.
//!
//! Most images on the web show no face. The detector first processes the whole image at a small
//! scale and reports boxes with scores down to [`SIGN_SCORE`], the signs of a face. Without a sign,
//! the image is not searched. With a clear sign (a face, or almost one), it is searched. A faint
//! sign is enlarged alone on a small canvas, and the image is searched if it becomes clear. Images
//! that are too large for this scale are always searched. docs/measurements/DETECTION.md lists the
//! shares of overlooked faces.
//!
//! A pack can have a cheaper detector for these looks. The boxes of this detector only decide
//! whether the image is searched. The faces of an image always come from the face detector.

use super::{AnalyzeError, MAX_SIDE_WITHOUT_SMALL, MIN_SMALL_VIEW_FACE, SMALL_VIEW};
use super::{Search, ViewDetections, longer_side, small_view};
use crate::domain::Rotate;
use crate::images::analyze::Passes;
use inference::Detector;
use vision::{Detection, View, keep_best};

/// Minimum score of a box that may be a face. At this score, YuNet finds 84 % of pasted faces of 14
/// pixels, 93 % of those of 16 pixels, and all of 20 pixels. In crops without a face, YuNet finds
/// no such box in two of three, and SCRFD 2.5G in almost half.
pub(super) const SIGN_SCORE: f32 = 0.05;
/// Minimum scale (canvas pixels per image pixel) at which a view without signs rules out usable
/// faces. The quality profile `standard` requires a distance of 12 pixels between the eyes. Such
/// faces are at least about 36 pixels high, which is 14 pixels at this scale.
pub(super) const MIN_SCALE: f64 = 0.4;
/// Maximum longer side of a look, relative to the canvas. Larger images are searched in tiles.
const MAX_LOOK_RATIO: f64 = 1.6;
/// Canvas side for which [`MIN_SCALE`] shows the usable faces. A larger canvas is requested to find
/// smaller faces, so the look is larger too.
const REFERENCE_CANVAS_SIDE: f64 = 640.0;
/// Multiple of the canvas side that detectors accept.
const CANVAS_STEP: u32 = 32;
/// Side of the canvas that enlarges one box, and the longer side of the box on it, in pixels.
const CLOSE_UP_CANVAS: u32 = 192;
const CLOSE_UP_FACE_SIDE: f64 = 56.0;
/// Maximum number of boxes of one view or level that are enlarged, best first. Together they cost
/// half a search of the whole image.
const MAX_CLOSE_UPS: usize = 6;

pub(super) struct FirstLookViews {
    /// The view in which faces that fill the frame are detected.
    small: View,
    /// The view in which usable faces are detected. `None` if `small` serves this purpose.
    usable: Option<View>,
    /// Whether these views can rule out usable faces. If `false`, the image is always searched.
    can_exclude_faces: bool,
}

/// The result of the first look at an image.
pub(super) enum FirstLook {
    /// No usable face.
    NoFaces,
    /// There may be faces. If the face detector has already processed the view for faces that fill
    /// the frame, contains this view and its faces.
    MayHaveFaces(Option<(View, Vec<Detection>)>),
    /// A face that is upright at this clockwise rotation in degrees, which is not 0.
    Rotated(u32),
}

impl Search<'_, '_> {
    /// Returns `true` if the detector of the first look accepts small canvases and if the options
    /// request a first look.
    pub(super) fn supports_first_look(&self) -> bool {
        let (width, height) = self.run.settings.canvas;
        let has_fixed_size = self.first_look_detector().info().fixed_size.is_some();
        let small = small_view(self.run.settings.passes, width.max(height));
        self.run.settings.passes == Passes::Auto && !has_fixed_size && small.is_some()
    }

    pub(super) fn first_look_detector(&self) -> Detector<'_> {
        self.run.analyzer.engine().first_look_detector()
    }

    /// Returns the views of the first look, or `None` for a search without one. On a device, each
    /// new canvas size may have to be compiled. The first look therefore has one size there and
    /// excludes no image.
    pub(super) fn first_look_views(&self) -> Option<FirstLookViews> {
        if !self.supports_first_look() {
            return None;
        }
        let (canvas, image) = (self.run.settings.canvas, self.image_size());
        let side = f64::from(canvas.0.max(canvas.1));
        let scale = MIN_SCALE * (side / REFERENCE_CANVAS_SIDE).max(1.0);
        let needed = (f64::from(image.0.max(image.1)) * scale).ceil() as u32;
        let needed = needed.next_multiple_of(CANVAS_STEP).max(SMALL_VIEW);
        let look = |side: u32| View::whole(image, (side, side));
        let accepts_any_size = self.first_look_detector().trims_canvases();
        Some(if accepts_any_size && needed <= MAX_SIDE_WITHOUT_SMALL {
            FirstLookViews { small: look(needed), usable: None, can_exclude_faces: true }
        } else {
            let can_exclude_faces = accepts_any_size && f64::from(needed) <= side * MAX_LOOK_RATIO;
            FirstLookViews {
                small: look(SMALL_VIEW),
                usable: can_exclude_faces.then(|| look(needed)),
                can_exclude_faces,
            }
        })
    }

    /// Processes the views of the first look until one of them shows a face.
    pub(super) async fn take_first_look(
        &mut self,
        views: FirstLookViews,
        rotation: u32,
    ) -> Result<FirstLook, AnalyzeError> {
        let small = self.search_view(self.first_look_detector(), views.small, rotation).await?;
        self.add_times(&small, 1);
        let has_clear_sign = self.has_clear_sign(self.first_look_detector(), &small.signs);
        // The first look at the unrotated image has already decided that rotations are searched.
        let mut face_rotation =
            (!views.can_exclude_faces || rotation != 0 || has_clear_sign).then_some(rotation);
        if face_rotation.is_none()
            && let Some(view) = views.usable
        {
            let usable = self.search_view(self.first_look_detector(), view, rotation).await?;
            self.add_times(&usable, 1);
            face_rotation = self.find_face_rotation(&usable, rotation).await?;
        }
        if face_rotation.is_none() {
            face_rotation = self.find_face_rotation(&small, rotation).await?;
        }
        match face_rotation {
            None => return Ok(FirstLook::NoFaces),
            Some(found) if found != rotation => return Ok(FirstLook::Rotated(found)),
            Some(_) => {}
        }
        if !self.run.analyzer.engine().has_first_look() {
            return Ok(FirstLook::MayHaveFaces(Some((views.small, small.detections))));
        }
        let min_side = MIN_SMALL_VIEW_FACE / views.small.letterbox.scale;
        let is_large = |sign: &Detection| longer_side(sign) >= min_side;
        Ok(FirstLook::MayHaveFaces(if small.signs.iter().any(is_large) {
            Some(self.search_small(rotation).await?)
        } else {
            None
        }))
    }

    /// Returns the rotation at which a view shows a face. It is `rotation` if a box is clear or
    /// becomes clear when it is enlarged. With [`Rotate::Auto`], the enlargement compares all
    /// rotations.
    async fn find_face_rotation(
        &mut self,
        found: &ViewDetections,
        rotation: u32,
    ) -> Result<Option<u32>, AnalyzeError> {
        if self.has_clear_sign(self.first_look_detector(), &found.signs) {
            return Ok(Some(rotation));
        }
        if self.run.options.rotate == Rotate::Auto {
            let mut signs = found.signs.clone();
            keep_best(&mut signs, MAX_CLOSE_UPS);
            return self.best_rotation(&signs, true).await;
        }
        let is_clear = self.becomes_clear(found.signs.clone(), rotation).await?;
        Ok(is_clear.then_some(rotation))
    }

    /// Enlarges boxes one by one, best first. Returns `true` as soon as one of them becomes clear.
    pub(super) async fn becomes_clear(
        &mut self,
        mut signs: Vec<Detection>,
        rotation: u32,
    ) -> Result<bool, AnalyzeError> {
        signs.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
        for sign in signs.iter().take(MAX_CLOSE_UPS) {
            let scale = CLOSE_UP_FACE_SIDE / f64::from(longer_side(sign).max(1.0));
            let view = View::around(self.image_size(), &sign.bbox, (CLOSE_UP_CANVAS, CLOSE_UP_CANVAS), scale);
            let close_up = self.search_view(self.first_look_detector(), view, rotation).await?;
            self.add_times(&close_up, 1);
            if self.has_clear_sign(self.first_look_detector(), &close_up.signs) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_clear_sign(&self, detector: Detector<'_>, signs: &[Detection]) -> bool {
        signs.iter().any(|sign| self.is_clear(detector, sign))
    }

    /// Returns `true` if a box of a detector is clear: a face, or almost one.
    pub(super) fn is_clear(&self, detector: Detector<'_>, sign: &Detection) -> bool {
        let min_clear_score = detector.info().min_score * super::CLEAR_SHARE;
        sign.det_score >= min_clear_score.min(self.run.settings.min_score)
    }
}
