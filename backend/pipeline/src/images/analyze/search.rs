//! Searches for faces: selects the views of an image that the detector processes, merges the
//! detections of all views into one list, and determines the rotation at which they are upright.
//! The geometry of views is in [`vision::View`].
//!
//! [`Passes::Thorough`] processes the image at a smaller scale, at which detectors find faces that
//! fill the frame, and tiles at 2, 4, … times the scale, up to its full resolution.
//!
//! [`Passes::Auto`] starts at the smaller scale ([`first_look`]), and stops there if nothing looks
//! like a face, unless the image is too large for this decision. It processes a level of tiles in
//! one of these cases:
//!
//! - The previous level contained tiny faces.
//! - No reliable face was found, and a faint box became clear when it was enlarged.
//! - Usable faces could be too small for the previous level, and the level has few tiles.
//!
//! docs/reference/ACCURACY.md lists accuracy and cost.
//!
//! A detector also finds faces that are not upright, with lower scores. [`Rotate::Auto`] therefore
//! compares the best boxes at the four rotations, each in one run on a small canvas, unless a face
//! is certainly upright. The image is searched at another rotation only if the comparison shows a
//! face there. Interactive work searches an image without a box at every rotation; background work
//! does not search it again. In a first look, the comparison replaces the enlargement of boxes.
mod first_look;
use super::pixels::DetectorInput;
use super::{AnalyzeError, Analyzer, Enhance, Passes, Run};
use crate::domain::Rotate;
use crate::images::analyze::pixels;
use first_look::{FirstLook, MIN_SCALE, SIGN_SCORE};
use futures::{StreamExt, TryStreamExt};
use inference::{Detector, Priority};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vision::enhance::LOW_RESOLUTION_SIDE;
use vision::nms::MAX_CANDIDATES;
use vision::quality::pose;
use vision::{Detection, Enhanced, Frame, Letterbox, RotationScores, View, keep_best, nms};

/// Longer side of the small view in canvas pixels. No view of the first look is smaller. The
/// detector's work is 9% of the work for 640 pixels, and detectors reliably find faces that fill
/// it.
const SMALL_VIEW: u32 = 192;
/// Maximum longer side of a canvas on which the detector finds faces that fill the view. It needs
/// no small view. SCRFD 2.5G finds all faces that fill 384 pixels, and 7 of 17 that fill 480.
const MAX_SIDE_WITHOUT_SMALL: u32 = 384;
/// Minimum longer side of a face in the small view, in pixels of that view. Smaller faces are
/// detected better on the canvas, and other small detections are noise.
const MIN_SMALL_VIEW_FACE: f32 = 64.0;
/// Longer side in canvas pixels below which a face is tiny. Near a tiny face there may be faces
/// that are too small for this view.
const TINY_SIDE: f32 = 24.0;
/// Minimum score of a clear box, as a fraction of the detector's own `min_score`. A clear box that
/// is tiny makes more faces of its size likely.
const CLEAR_SHARE: f32 = 0.6;
/// Maximum number of tiles of one level. An image of 50 megapixels has about 270 tiles at its full
/// resolution.
const MAX_TILES: usize = 320;
/// Scale (canvas pixels per image pixel) up to which a faint box can be a face that is too small
/// for the view. At a scale of one half, the view misses faces under 24 image pixels.
const COARSE_SCALE: f64 = 0.5;
/// Score at which a face is reliable for every detector. Detectors assign lower scores to most
/// false detections and to faces that are almost too small.
const RELIABLE_SCORE: f32 = 0.8;
/// A face is also reliable if its score exceeds the detector's own `min_score` by this value. In 45
/// photographs, the best face is reliable for YuNet in 43 (at least 0.8) and for SCRFD 2.5G in 40
/// (at least 0.7).
const RELIABLE_MARGIN: f32 = 0.2;
/// Maximum number of tiles of a level that [`Passes::Auto`] searches without a sign of faces. This
/// bounds the cost of a large image without faces. An image of 24 megapixels has 15 such tiles.
const MAX_SPECULATIVE_TILES: usize = 32;
/// Maximum scale of a level of tiles, relative to twice the scale of the previous level. Faces that
/// are too large for the tiles then have at least 32 canvas pixels in the previous level.
const MAX_SKIP: f64 = 2.0;
/// Maximum number of faces of one view (the whole image or a tile). The best ones are kept. An
/// image can have hundreds of views, and the search compares all their faces with each other.
const MAX_VIEW_FACES: usize = 1_000;
/// Maximum number of boxes that are kept as signs of one view or level, best first.
const MAX_SIGNS: usize = 16;
/// Maximum number of faces that are compared directly on the async thread. For this number of
/// faces, the comparison takes less time than a switch to another thread.
const MAX_FACES_INLINE: usize = 256;
/// Maximum number of tiles of one image in the detector's queue at a time. They fill a batch and
/// leave space for other images.
const TILES_IN_FLIGHT: usize = 8;

/// Returns the side in pixels of the canvas of the small view. `canvas` is the longer side of the
/// main canvas in pixels. Returns `None` if there is no small view, because of `passes` or because
/// the main canvas is small enough.
pub fn small_view(passes: Passes, canvas: u32) -> Option<u32> {
    (passes != Passes::Single && canvas > MAX_SIDE_WITHOUT_SMALL).then_some(SMALL_VIEW)
}

/// The result of a search. `detections` are in image coordinates, best first. `rotation` is the
/// clockwise rotation of the image, in degrees, at which they were found. `views` is the number of
/// detector runs.
pub(super) struct DetectedFaces {
    pub(super) detections: Vec<Detection>,
    pub(super) rotation: u32,
    pub(super) views: usize,
}

#[derive(Default)]
struct ViewDetections {
    detections: Vec<Detection>,
    /// Number of boxes of tiny faces, including those with a score below `min_score`.
    tiny_count: usize,
    /// The best boxes with a score of at least [`SIGN_SCORE`]. Empty without [`Passes::Auto`] and
    /// [`Rotate::Auto`].
    signs: Vec<Detection>,
    /// Whether the image contains no usable face, so that further views are not worth their cost.
    has_no_faces: bool,
    /// The clockwise rotation in degrees, other than 0, at which the first look shows a face.
    rotation: Option<u32>,
    queued: Duration,
    drawn: Duration,
    ran: Duration,
}

impl Analyzer {
    /// Returns the minimum `det_score` of a reliable face, which is almost certainly not a false
    /// detection. If an image has a reliable face, further searches are less likely to find more.
    fn reliable_score(&self) -> f32 {
        (self.engine().face_detector().info().min_score + RELIABLE_MARGIN).min(RELIABLE_SCORE)
    }
}

/// The search of one image.
struct Search<'r, 'a> {
    run: &'r mut Run<'a>,
    frame: &'r Arc<Frame>,
    /// Number of detector runs.
    views: usize,
}

impl Search<'_, '_> {
    /// Searches the unrotated image. With [`Rotate::Auto`], searches it again at the rotation at
    /// which its faces are upright, if that is another one, and returns this result if it contains
    /// a face.
    async fn run(mut self) -> Result<DetectedFaces, AnalyzeError> {
        let found = self.search_whole(0).await?;
        let rotation = match found.rotation {
            None => self.find_rotation(&found).await?,
            rotation => rotation,
        };
        if let Some(rotated) = self.search_rotated(rotation).await? {
            return Ok(rotated);
        }
        let detections = self.search_tiles(found, 0).await?;
        if rotation.is_none() && !detections.is_empty() {
            // Only the tiles show faces.
            let found = ViewDetections { detections: detections.clone(), ..Default::default() };
            let rotation = self.find_rotation(&found).await?;
            if let Some(rotated) = self.search_rotated(rotation).await? {
                return Ok(rotated);
            }
        }
        if rotation.is_none() && detections.is_empty() && self.run.priority == Priority::Interactive {
            return self.search_all_rotations().await;
        }
        Ok(DetectedFaces { detections, rotation: 0, views: self.views })
    }

    /// Searches the image at every other rotation, and returns the result with the best face,
    /// because a detector may give no sign of a face that is not upright. Background work does not
    /// call this: most of its images show no face, and each would be searched three more times.
    async fn search_all_rotations(&mut self) -> Result<DetectedFaces, AnalyzeError> {
        let best_score =
            |found: &DetectedFaces| found.detections.iter().map(|d| d.det_score).fold(0.0, f32::max);
        let mut best = DetectedFaces { detections: Vec::new(), rotation: 0, views: 0 };
        for rotation in [90, 180, 270] {
            if let Some(found) = self.search_rotated(Some(rotation)).await?
                && best_score(&found) > best_score(&best)
            {
                best = found;
            }
        }
        Ok(DetectedFaces { views: self.views, ..best })
    }

    /// Searches the image at `rotation`. Returns `None` if the rotation is 0 or unknown, or if no
    /// face is found. A canvas that is not square is rotated by 180 degrees only, because its model
    /// accepts no other shape.
    async fn search_rotated(&mut self, rotation: Option<u32>) -> Result<Option<DetectedFaces>, AnalyzeError> {
        let is_square = self.run.settings.canvas.0 == self.run.settings.canvas.1;
        let Some(rotation) = rotation.filter(|degrees| *degrees == 180 || (*degrees != 0 && is_square))
        else {
            return Ok(None);
        };
        let found = self.search_whole(rotation).await?;
        let detections = self.search_tiles(found, rotation).await?;
        Ok((!detections.is_empty()).then_some(DetectedFaces { detections, rotation, views: self.views }))
    }

    /// Searches the whole image on the canvas, unless a first look shows that it contains no face.
    /// Adds the faces of the first look or of the small view that are too large for the canvas.
    async fn search_whole(&mut self, rotation: u32) -> Result<ViewDetections, AnalyzeError> {
        let mut large_faces = None;
        if let Some(views) = self.first_look_views() {
            match self.take_first_look(views, rotation).await? {
                FirstLook::NoFaces => return Ok(ViewDetections { has_no_faces: true, ..Default::default() }),
                FirstLook::Rotated(rotation) => {
                    return Ok(ViewDetections {
                        has_no_faces: true,
                        rotation: Some(rotation),
                        ..Default::default()
                    });
                }
                FirstLook::MayHaveFaces(found) => large_faces = found,
            }
        }
        let (image, canvas) = (self.image_size(), self.run.settings.canvas);
        let mut found = self.search_view(self.face_detector(), View::whole(image, canvas), rotation).await?;
        self.add_times(&found, 1);
        if large_faces.is_none() && self.needs_small_view(&found) {
            large_faces = Some(self.search_small(rotation).await?);
        }
        if let Some((view, mut faces)) = large_faces {
            let min_side = MIN_SMALL_VIEW_FACE / view.letterbox.scale;
            faces.retain(|face| longer_side(face) >= min_side);
            found.detections.append(&mut faces);
            found.detections = self.remove_duplicates(found.detections).await?;
        }
        Ok(found)
    }

    /// Searches the small view of the whole image, for faces that fill the frame. Returns the view
    /// and its faces.
    async fn search_small(&mut self, rotation: u32) -> Result<(View, Vec<Detection>), AnalyzeError> {
        let side = (SMALL_VIEW, SMALL_VIEW);
        let view =
            View::small(self.image_size(), side, self.face_detector().info().fixed_size.unwrap_or(side));
        let small = self.search_view(self.face_detector(), view, rotation).await?;
        self.add_times(&small, 1);
        Ok((view, small.detections))
    }

    /// Returns `true` if the small view must be searched too. With [`Passes::Auto`], the first look
    /// replaces it. If the face detector would take the first look and has a fixed size, there is
    /// no first look, because a small view costs as much as the whole image. The small view is then
    /// searched only if nothing was found.
    fn needs_small_view(&self, found: &ViewDetections) -> bool {
        let (width, height) = self.run.settings.canvas;
        small_view(self.run.settings.passes, width.max(height)).is_some()
            && (self.run.settings.passes == Passes::Thorough
                || (!self.supports_first_look() && found.detections.is_empty()))
    }

    /// Adds the detections of the tiles to those of the whole image.
    async fn search_tiles(
        &mut self,
        mut found: ViewDetections,
        rotation: u32,
    ) -> Result<Vec<Detection>, AnalyzeError> {
        let (image, canvas) = (self.image_size(), self.run.settings.canvas);
        let mut detections = std::mem::take(&mut found.detections);
        let mut scale = f64::from(View::whole(image, canvas).letterbox.scale);
        let reliable_score = self.run.analyzer.reliable_score();
        let uses_tiles = self.run.settings.passes != Passes::Single && !found.has_no_faces;
        while uses_tiles && scale < 1.0 {
            let has_reliable_face = detections.iter().any(|face| face.det_score >= reliable_score);
            let mut expects_more_faces = self.run.settings.passes == Passes::Thorough || found.tiny_count > 0;
            if !expects_more_faces && !has_reliable_face && scale < COARSE_SCALE && self.supports_first_look()
            {
                // A clear box that is not tiny does not make smaller faces likely.
                let mut faint = std::mem::take(&mut found.signs);
                faint.retain(|sign| !self.is_clear(self.face_detector(), sign));
                expects_more_faces = self.becomes_clear(faint, rotation).await?;
            }
            let may_miss_usable_faces = scale < MIN_SCALE && !has_reliable_face;
            let (doubled, usable_scale) = (scale * 2.0, (scale * 2.0).max(MIN_SCALE));
            scale = doubled;
            let mut tiles = View::tiles(image, canvas, doubled);
            // Without a sign, only the level that shows usable faces is worth its cost.
            if !expects_more_faces && usable_scale <= doubled * MAX_SKIP {
                let level = View::tiles(image, canvas, usable_scale);
                if level.len() <= MAX_SPECULATIVE_TILES {
                    (scale, tiles) = (usable_scale, level);
                }
            }
            let is_affordable =
                tiles.len() <= if expects_more_faces { MAX_TILES } else { MAX_SPECULATIVE_TILES };
            if !(expects_more_faces || may_miss_usable_faces) || !is_affordable {
                break;
            }
            let views = tiles.len();
            found = self.search_views(tiles, rotation).await?;
            self.add_times(&found, views);
            append_bounded(&mut detections, &mut found.detections);
        }
        self.remove_duplicates(detections).await
    }

    /// Searches several views, at most [`TILES_IN_FLIGHT`] at a time.
    async fn search_views(&self, views: Vec<View>, rotation: u32) -> Result<ViewDetections, AnalyzeError> {
        let started = Instant::now();
        let search = |view| self.search_view(self.face_detector(), view, rotation);
        let searches = futures::stream::iter(views.into_iter().map(search));
        let mut queued: Option<Duration> = None;
        let mut merged = ViewDetections::default();
        let mut searches = std::pin::pin!(searches.buffered(TILES_IN_FLIGHT));
        while let Some(mut found) = searches.try_next().await? {
            append_bounded(&mut merged.detections, &mut found.detections);
            merged.tiny_count += found.tiny_count;
            merged.signs.append(&mut found.signs);
            keep_best(&mut merged.signs, MAX_SIGNS);
            merged.drawn += found.drawn;
            merged.ran += found.ran;
            queued = Some(queued.map_or(found.queued, |shortest| shortest.min(found.queued)));
        }
        // Only the shortest wait counts as queue time: the other tiles wait for this image's tiles.
        merged.queued = queued.unwrap_or_default().min(started.elapsed());
        let elapsed = started.elapsed() - merged.queued;
        let share = merged.drawn.as_secs_f64() / (merged.drawn + merged.ran).as_secs_f64().max(f64::EPSILON);
        merged.drawn = elapsed.mul_f64(share);
        merged.ran = elapsed.saturating_sub(merged.drawn);
        Ok(merged)
    }

    /// Searches one view with a detector, rotated clockwise by `rotation` degrees, and returns the
    /// faces that lie completely inside the view.
    async fn search_view(
        &self,
        detector: Detector<'_>,
        view: View,
        rotation: u32,
    ) -> Result<ViewDetections, AnalyzeError> {
        let view = View { letterbox: detector.adapt_letterbox(view.letterbox), ..view };
        let drawn =
            self.run.analyzer.pixels().detector_input(self.frame, view, rotation, self.run.priority).await?;
        let DetectorInput { frame, letterbox } = drawn.output;
        let min_score = self.run.settings.min_score;
        let min_tiny_score = detector.info().min_score * CLEAR_SHARE;
        let collects_signs =
            self.run.settings.passes == Passes::Auto || self.run.options.rotate == Rotate::Auto;
        let min_detection_score = if collects_signs { SIGN_SCORE } else { min_tiny_score.min(min_score) };
        let timed = detector.detect(frame, letterbox, min_detection_score, self.run.priority).await?;
        let mut found = ViewDetections {
            queued: drawn.queued + timed.queued,
            drawn: drawn.ran,
            ran: timed.ran,
            ..ViewDetections::default()
        };
        for face in timed.output {
            let is_tiny = longer_side(&face) < TINY_SIDE && face.det_score >= min_tiny_score;
            let face = view.map_to_image(&pixels::unrotate(&face, view.letterbox.canvas, rotation));
            if view.cuts(&face.bbox) {
                continue;
            }
            found.tiny_count += usize::from(is_tiny);
            if collects_signs {
                found.signs.push(face);
            }
            if face.det_score >= min_score {
                found.detections.push(face);
            }
        }
        keep_best(&mut found.detections, MAX_VIEW_FACES);
        keep_best(&mut found.signs, MAX_SIGNS);
        Ok(found)
    }

    /// Removes duplicates. Among faces that overlap, only the face with the best score is kept. The
    /// number of comparisons grows with the square of the number of faces, so many faces are
    /// compared on the CPU pool.
    async fn remove_duplicates(&mut self, faces: Vec<Detection>) -> Result<Vec<Detection>, AnalyzeError> {
        let iou = self.run.analyzer.engine().detector().nms_iou;
        if faces.len() <= MAX_FACES_INLINE {
            return Ok(nms(faces, iou));
        }
        let best = self.run.analyzer.cpu().run(move || nms(faces, iou)).await?;
        self.run.timings.queue += best.queued;
        self.run.timings.detect += best.ran;
        Ok(best.output)
    }

    fn face_detector(&self) -> Detector<'_> {
        self.run.analyzer.engine().face_detector()
    }

    fn image_size(&self) -> (u32, u32) {
        (self.frame.width(), self.frame.height())
    }

    /// Adds the times of a search of `views` views to the timings.
    fn add_times(&mut self, found: &ViewDetections, views: usize) {
        self.views += views;
        self.run.timings.queue += found.queued;
        self.run.timings.letterbox += found.drawn;
        self.run.timings.detect += found.ran;
    }
}

/// Moves the faces of further views to `all`. The final [`nms()`] compares at most
/// [`MAX_CANDIDATES`] faces. When `all` holds more than twice that number, only the best
/// [`MAX_CANDIDATES`] are kept. This bounds the memory for a large image, and each face is compared
/// only a few times.
fn append_bounded(all: &mut Vec<Detection>, more: &mut Vec<Detection>) {
    all.append(more);
    if all.len() > 2 * MAX_CANDIDATES {
        keep_best(all, MAX_CANDIDATES);
    }
}

fn longer_side(face: &Detection) -> f32 {
    face.bbox.width.max(face.bbox.height)
}

/// Maximum number of boxes of one image that are compared, best first.
const MAX_COMPARED: usize = 3;
/// Maximum roll in degrees, to either side, of the landmarks of a face that is certainly upright.
const MAX_UPRIGHT_ROLL: f32 = 45.0;

impl Search<'_, '_> {
    /// Returns the clockwise rotation in degrees at which the faces are upright: the one with the
    /// highest score of a box. Returns `None` if no box shows a face at any rotation.
    async fn find_rotation(&mut self, found: &ViewDetections) -> Result<Option<u32>, AnalyzeError> {
        let upright_score = self.run.analyzer.upright_score();
        let is_upright = |face: &Detection| {
            face.det_score >= upright_score && pose::estimate(&face.landmarks).roll.abs() <= MAX_UPRIGHT_ROLL
        };
        if self.run.options.rotate == Rotate::Off || found.detections.iter().any(is_upright) {
            return Ok(Some(0));
        }
        let mut boxes = [found.detections.as_slice(), &found.signs].concat();
        keep_best(&mut boxes, MAX_VIEW_FACES);
        let mut boxes = nms(boxes, self.run.analyzer.engine().detector().nms_iou);
        boxes.truncate(MAX_COMPARED);
        self.best_rotation(&boxes, false).await
    }

    /// Compares boxes one by one, best first. Returns the rotation with the highest score, or
    /// `None` if no box shows a face. With `stop_at_first`, stops at the first box that shows a
    /// face.
    async fn best_rotation(
        &mut self,
        boxes: &[Detection],
        stop_at_first: bool,
    ) -> Result<Option<u32>, AnalyzeError> {
        let mut best: Option<(u32, f32)> = None;
        for face in boxes {
            self.views += 1;
            let compared =
                self.run.analyzer.rotation_scores(self.frame, vec![face.bbox], self.run.priority).await?;
            self.run.timings.queue += compared.queued;
            self.run.timings.detect += compared.ran;
            let scores: Option<&RotationScores> = compared.output.first();
            let next = scores
                .and_then(|scores| scores.best_with_min_score(|rotation| self.min_face_score(rotation)));
            if let Some(next) = next.filter(|next| best.is_none_or(|best| next.1 > best.1)) {
                best = Some(next);
                if stop_at_first {
                    break;
                }
            }
        }
        Ok(best.map(|(rotation, _)| rotation))
    }

    /// Returns the minimum score at which a box shows a face at a rotation. At 0, a box that is
    /// almost a face is enough, as in a search without rotations. At another rotation it must be a
    /// face, because a second search of an image without faces would be useless.
    fn min_face_score(&self, rotation: u32) -> f32 {
        let min_score = self.first_look_detector().info().min_score;
        if rotation == 0 { min_score * CLEAR_SHARE } else { min_score }
    }
}

pub(super) struct SearchResult {
    /// The faces, in coordinates of the original image.
    pub(super) found: DetectedFaces,
    /// The image in which the faces were found: the original or the enhanced one. Face crops are
    /// cut from it, because a face that is only detected on enhanced pixels is only recognised on
    /// them.
    pub(super) pixels: Arc<Frame>,
    /// Scale from the original to the enhanced image; `None` if they are found in the original.
    pub(super) enhancement_scale: Option<f32>,
}

impl Run<'_> {
    /// Detects faces. If the image is small, no face is reliable and the options allow it, detects
    /// again on the enhanced image and returns the result with the better total score.
    pub(super) async fn detect_with_enhancement(
        &mut self,
        frame: &Arc<Frame>,
    ) -> Result<SearchResult, AnalyzeError> {
        let mut found = Search { run: self, frame, views: 0 }.run().await?;
        let reliable_score = self.analyzer.reliable_score();
        let has_reliable_face = found.detections.iter().any(|face| face.det_score >= reliable_score);
        let is_low_resolution = frame.width().min(frame.height()) < LOW_RESOLUTION_SIDE;
        if self.options.enhance == Enhance::Off || has_reliable_face || !is_low_resolution {
            return Ok(SearchResult { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let enhanced = self.analyzer.pixels().enhance(frame.clone(), self.priority).await?;
        self.timings.queue += enhanced.queued;
        self.timings.detect += enhanced.ran;
        let Enhanced { frame: pixels, scale } = enhanced.output;
        let pixels = Arc::new(pixels);
        let mut second = Search { run: self, frame: &pixels, views: found.views }.run().await?;
        found.views = second.views;
        if total_score(&second.detections) <= total_score(&found.detections) {
            return Ok(SearchResult { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let size = (frame.width(), frame.height());
        let letterbox = Letterbox { scale, canvas: size, content: size };
        for detection in &mut second.detections {
            *detection = letterbox.map_to_image(detection);
        }
        Ok(SearchResult { found: second, pixels, enhancement_scale: Some(scale) })
    }
}

fn total_score(detections: &[Detection]) -> f32 {
    detections.iter().map(|face| face.det_score).sum()
}
