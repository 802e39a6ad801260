//! Decides at a small scale whether an image is worth a search.
//!
//! Most images on the web show no face. The detector first processes the whole image at a small
//! scale and reports boxes with scores down to [`SIGN_SCORE`], the signs of a face. Without a sign,
//! the image is not searched. With a clear one (a face, or almost one), it is. A faint sign is
//! enlarged alone on a small canvas, and the image is searched if it becomes clear. Images that are
//! too large for this scale are always searched. docs/measurements/DETECTION.md lists the shares of
//! overlooked faces.
//!
//! A pack can have a cheaper detector for these looks. The boxes of this detector only decide
//! whether the image is searched. The faces of an image always come from the detector of faces.

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
const MAX_LOOK: f64 = 1.6;
/// Canvas side for which [`MIN_SCALE`] shows the usable faces. A larger canvas is requested to find
/// smaller faces, so the look is larger too.
const USUAL_CANVAS: f64 = 640.0;
/// Multiple of the canvas side that detectors accept.
const STEP: u32 = 32;
/// Side of the canvas that enlarges one box, and the longer side of the box on it, in pixels.
const CLOSE_UP: u32 = 192;
const CLOSE_UP_FACE: f64 = 56.0;
/// Maximum number of boxes of one view or level that are enlarged, best first. Together they cost
/// half a search of the whole image.
const MAX_CLOSE_UPS: usize = 6;

pub(super) struct Looks {
    /// The view in which faces that fill the frame are detected.
    frame: View,
    /// The view in which usable faces are detected. `None` if `frame` serves this purpose.
    usable: Option<View>,
    /// Whether these views can rule out usable faces. If `false`, the image is always searched.
    decides: bool,
}

/// What the looks at an image show.
pub(super) enum Seen {
    /// No usable face.
    Nothing,
    /// There may be faces. If the detector of faces has already processed the view for faces that
    /// fill the frame, contains this view and its faces.
    Faces(Option<(View, Vec<Detection>)>),
    /// A face that is upright at this clockwise rotation in degrees, which is not 0.
    Turned(u32),
}

impl Search<'_, '_> {
    /// Returns whether the detector of looks accepts the small canvases of looks and close-ups.
    pub(super) fn can_look(&self) -> bool {
        let (width, height) = self.run.settings.canvas;
        let fixed = self.looks_with().info().fixed_size.is_some();
        let small = small_view(self.run.settings.passes, width.max(height));
        self.run.settings.passes == Passes::Auto && !fixed && small.is_some()
    }

    pub(super) fn looks_with(&self) -> Detector<'_> {
        self.run.analyzer.engine().first_look()
    }

    /// Returns the views of the first look, or `None` for a search without one. On a device, where
    /// each new canvas size may have to be compiled, it has one size and decides nothing.
    pub(super) fn looks(&self) -> Option<Looks> {
        if !self.can_look() {
            return None;
        }
        let (canvas, image) = (self.run.settings.canvas, self.image());
        let side = f64::from(canvas.0.max(canvas.1));
        let scale = MIN_SCALE * (side / USUAL_CANVAS).max(1.0);
        let needed = (f64::from(image.0.max(image.1)) * scale).ceil() as u32;
        let needed = needed.next_multiple_of(STEP).max(SMALL_VIEW);
        let look = |side: u32| View::whole(image, (side, side));
        let any_size = self.looks_with().trims_canvases();
        Some(if any_size && needed <= MAX_SIDE_WITHOUT_SMALL {
            Looks { frame: look(needed), usable: None, decides: true }
        } else {
            let decides = any_size && f64::from(needed) <= side * MAX_LOOK;
            Looks { frame: look(SMALL_VIEW), usable: decides.then(|| look(needed)), decides }
        })
    }

    /// Processes the views of the first look until one of them shows a face.
    pub(super) async fn look(&mut self, looks: Looks, rotation: u32) -> Result<Seen, AnalyzeError> {
        let frame = self.search_view(self.looks_with(), looks.frame, rotation).await?;
        self.account(&frame, 1);
        let clear = self.is_any_clear(self.looks_with(), &frame.signs);
        // The first look at the unrotated image has already decided that rotations are searched.
        let mut face_rotation = (!looks.decides || rotation != 0 || clear).then_some(rotation);
        if face_rotation.is_none()
            && let Some(view) = looks.usable
        {
            let usable = self.search_view(self.looks_with(), view, rotation).await?;
            self.account(&usable, 1);
            face_rotation = self.shows_face(&usable, rotation).await?;
        }
        if face_rotation.is_none() {
            face_rotation = self.shows_face(&frame, rotation).await?;
        }
        match face_rotation {
            None => return Ok(Seen::Nothing),
            Some(turn) if turn != rotation => return Ok(Seen::Turned(turn)),
            Some(_) => {}
        }
        if !self.run.analyzer.engine().has_first_look() {
            return Ok(Seen::Faces(Some((looks.frame, frame.detections))));
        }
        let min_side = MIN_SMALL_VIEW_FACE / looks.frame.letterbox.scale;
        let is_large = |sign: &Detection| longer_side(sign) >= min_side;
        Ok(Seen::Faces(if frame.signs.iter().any(is_large) {
            Some(self.search_small(rotation).await?)
        } else {
            None
        }))
    }

    /// Returns the rotation at which a view shows a face: the given one for a clear box, or for a
    /// faint one that enlarging makes clear. With [`Rotate::Auto`], the enlargement compares all
    /// rotations.
    async fn shows_face(
        &mut self,
        found: &ViewDetections,
        rotation: u32,
    ) -> Result<Option<u32>, AnalyzeError> {
        if self.is_any_clear(self.looks_with(), &found.signs) {
            return Ok(Some(rotation));
        }
        if self.run.options.rotate == Rotate::Auto {
            let mut signs = found.signs.clone();
            keep_best(&mut signs, MAX_CLOSE_UPS);
            return self.turn_of(&signs, true).await;
        }
        let enlarged = self.enlarges_to_face(found.signs.clone(), rotation).await?;
        Ok(enlarged.then_some(rotation))
    }

    /// Enlarges boxes one by one, best first, until one of them becomes clear.
    pub(super) async fn enlarges_to_face(
        &mut self,
        mut signs: Vec<Detection>,
        rotation: u32,
    ) -> Result<bool, AnalyzeError> {
        signs.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
        for sign in signs.iter().take(MAX_CLOSE_UPS) {
            let scale = CLOSE_UP_FACE / f64::from(longer_side(sign).max(1.0));
            let view = View::around(self.image(), &sign.bbox, (CLOSE_UP, CLOSE_UP), scale);
            let close_up = self.search_view(self.looks_with(), view, rotation).await?;
            self.account(&close_up, 1);
            if self.is_any_clear(self.looks_with(), &close_up.signs) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_any_clear(&self, detector: Detector<'_>, signs: &[Detection]) -> bool {
        signs.iter().any(|sign| self.is_clear(detector, sign))
    }

    /// Returns whether a box of a detector is clear: a face, or almost one.
    pub(super) fn is_clear(&self, detector: Detector<'_>, sign: &Detection) -> bool {
        let clear = detector.info().min_score * super::CLEAR_SHARE;
        sign.det_score >= clear.min(self.run.settings.min_score)
    }
}
