//! The search for faces: which views of a picture the detector is shown, and how what it says of them becomes one list.
//!
//! Every search starts with the whole picture on the canvas. With [`Passes::Auto`] and [`Passes::Thorough`] the picture is also seen
//! small, where faces that fill the frame have the size that detectors know, and in tiles at two, four, … times the scale, until
//! it is seen at its own resolution. Auto takes a level of tiles only while the level before it shows faces so small that there are
//! likely to be more; or, in a large picture that has shown no sure face yet, while the level is a short one. docs/measurements/DETECTION.md has
//! what each finds and costs.

use super::options::Settings;
use super::pixels::Shown;
use super::{AnalyzeError, Analyzer, Passes, Rotate, Timings, turn};
use futures::{StreamExt, TryStreamExt};
use inference::Lane;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vision::nms::MAX_CANDIDATES;
use vision::{Detection, Frame, View, keep_best, nms};

/// `det_score` from which an upright face settles that a picture is upright. Detectors also find a turned face now and then, with a lower score, a box that
/// is off and landmarks that are wrong: of one portrait turned by 0, 90, 180 and 270 degrees YuNet says 0.94, nothing, 0.87 and 0.83, and SCRFD 2.5G
/// 0.81, 0.69, nothing and 0.59. So finding something is not enough.
const CONVINCING: f32 = 0.9;
/// Longer side in canvas pixels of a picture that is seen small: a ninth of the work of 640, and a face that fills it is found for certain.
const SMALL: u32 = 192;
/// Longest canvas that needs no small view: SCRFD 2.5G finds a face that fills 384 pixels, and overlooks one that fills 480.
const NO_SMALL: u32 = 384;
/// Least longer side in pixels of a face in the small view; smaller ones are seen better on the canvas, and the rest is noise.
const SMALL_FACE: f32 = 64.0;
/// Longer side in canvas pixels below which a face is tiny: there may be others beside it that are too small to be seen.
const TINY: f32 = 24.0;
/// Share of the detector's own `min_score` from which a tiny box counts as a sign of faces.
const FAINT: f32 = 0.6;
/// Most tiles of one level; a picture of 50 megapixels has about 270 at its own resolution.
const MOST_TILES: usize = 320;
/// Canvas pixels per image pixel of a view up to which faces of some size in the picture have gone unseen: at one half, those under 24 pixels.
const BLIND: f64 = 0.5;
/// Score from which a face is a sure one: detectors give less to most of what is none, and to faces that are nearly too small.
const SURE: f32 = 0.8;
/// Most tiles of a level that auto takes without a sign of faces, so that a large picture without any costs a bounded number of looks: 6 and 20 where
/// it has 24 megapixels.
const MOST_BLIND_TILES: usize = 32;
/// Maximum number of faces of one view (the whole picture or a tile); the best ones are kept. A
/// picture can have hundreds of views, and the search compares all their faces with each other.
const VIEW_FACES: usize = 1_000;
/// Faces up to which a comparison of each with each is done at once, on the async thread: it takes less than to hand them to another.
const FEW_FACES: usize = 256;
/// Tiles of one picture in work at once: enough to fill a batch, few enough to leave room for others in the queue.
const TILES_IN_FLIGHT: usize = 8;

/// What was found, in image coordinates, best first, and the clockwise turn of the image that it was found at.
pub(super) struct Found {
    pub(super) detections: Vec<Detection>,
    pub(super) rotation: u32,
    pub(super) views: usize,
}

/// What one or more views showed.
#[derive(Default)]
struct Seen {
    detections: Vec<Detection>,
    /// Boxes of tiny faces, faint ones included.
    tiny: usize,
    queued: Duration,
    drawn: Duration,
    ran: Duration,
}

impl Analyzer {
    /// Searches a picture with the passes of the settings, turned too where that was asked for.
    pub(super) async fn detect(
        &self,
        frame: &Arc<Frame>,
        settings: &Settings,
        rotate: Rotate,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Found, AnalyzeError> {
        Search { analyzer: self, frame, settings, lane }.run(rotate, timings).await
    }
}

/// One search in one picture.
struct Search<'a> {
    analyzer: &'a Analyzer,
    frame: &'a Arc<Frame>,
    settings: &'a Settings,
    lane: Lane,
}

impl Search<'_> {
    /// Searches upright and, where that was asked for and gave nothing convincing, turned; the turn with the best total score wins, upright ahead of
    /// equals. A canvas that is not square is only turned by 180 degrees, because its model takes no other shape.
    async fn run(&self, rotate: Rotate, timings: &mut Timings) -> Result<Found, AnalyzeError> {
        let mut views = 0;
        let mut best = (self.whole(0, timings, &mut views).await?, 0);
        if rotate == Rotate::Auto && best.0.detections.iter().all(|d| d.det_score < CONVINCING) {
            let square = self.settings.canvas.0 == self.settings.canvas.1;
            for degrees in [90, 180, 270] {
                if degrees == 180 || square {
                    let seen = self.whole(degrees, timings, &mut views).await?;
                    if total_score(&seen.detections) > total_score(&best.0.detections) {
                        best = (seen, degrees);
                    }
                }
            }
        }
        let (seen, rotation) = best;
        let detections = self.closer(seen, rotation, timings, &mut views).await?;
        Ok(Found { detections, rotation, views })
    }

    /// The whole picture, on the canvas and, where it is called for, small.
    async fn whole(
        &self,
        rotation: u32,
        timings: &mut Timings,
        views: &mut usize,
    ) -> Result<Seen, AnalyzeError> {
        let (image, canvas) = (self.image(), self.settings.canvas);
        let mut seen = self.look(View::whole(image, canvas), rotation).await?;
        seen.account(timings);
        *views += 1;
        if self.wants_small(&seen) {
            let fixed = self.analyzer.engine().detector().fixed_size;
            let view = View::small(image, (SMALL, SMALL), fixed.unwrap_or((SMALL, SMALL)));
            let mut small = self.look(view, rotation).await?;
            small.account(timings);
            *views += 1;
            let least = SMALL_FACE / view.letterbox.scale;
            small.detections.retain(|face| longer(face) >= least);
            seen.detections.append(&mut small.detections);
            seen.detections = self.suppress(seen.detections, timings).await?;
        }
        Ok(seen)
    }

    /// A detector of any size takes a small canvas, which costs next to nothing. One of a fixed size takes as long as for the whole, so that auto asks
    /// it only when it has found nothing.
    fn wants_small(&self, seen: &Seen) -> bool {
        let (width, height) = self.settings.canvas;
        let cheap = self.analyzer.engine().detector().fixed_size.is_none();
        match self.settings.passes {
            _ if width.max(height) <= NO_SMALL => false,
            Passes::Single => false,
            Passes::Auto => cheap || seen.detections.is_empty(),
            Passes::Thorough => true,
        }
    }

    /// Adds what tiles show.
    async fn closer(
        &self,
        mut seen: Seen,
        rotation: u32,
        timings: &mut Timings,
        views: &mut usize,
    ) -> Result<Vec<Detection>, AnalyzeError> {
        let (image, canvas) = (self.image(), self.settings.canvas);
        let mut all = std::mem::take(&mut seen.detections);
        let mut scale = f64::from(View::whole(image, canvas).letterbox.scale);
        while scale < 1.0 && self.settings.passes != Passes::Single {
            let blind = scale <= BLIND && all.iter().all(|face| face.det_score < SURE);
            let promising = self.settings.passes == Passes::Thorough || seen.tiny > 0;
            scale *= 2.0;
            let tiles = View::tiles(image, canvas, scale);
            let affordable = tiles.len() <= if promising { MOST_TILES } else { MOST_BLIND_TILES };
            if !(promising || blind) || !affordable {
                break;
            }
            *views += tiles.len();
            seen = self.look_at_all(tiles, rotation).await?;
            seen.account(timings);
            gather(&mut all, &mut seen.detections);
        }
        self.suppress(all, timings).await
    }

    /// Several views, a few at a time.
    async fn look_at_all(&self, views: Vec<View>, rotation: u32) -> Result<Seen, AnalyzeError> {
        let started = Instant::now();
        let looks = futures::stream::iter(views.into_iter().map(|view| self.look(view, rotation)));
        let mut queued: Option<Duration> = None;
        let mut all = Seen::default();
        let mut looks = std::pin::pin!(looks.buffered(TILES_IN_FLIGHT));
        while let Some(mut seen) = looks.try_next().await? {
            gather(&mut all.detections, &mut seen.detections);
            all.tiny += seen.tiny;
            all.drawn += seen.drawn;
            all.ran += seen.ran;
            queued = Some(queued.map_or(seen.queued, |least| least.min(seen.queued)));
        }
        // What is waiting is the wait of the luckiest: from then on the picture's own tiles queue behind each other.
        all.queued = queued.unwrap_or_default().min(started.elapsed());
        let elapsed = started.elapsed() - all.queued;
        let share = all.drawn.as_secs_f64() / (all.drawn + all.ran).as_secs_f64().max(f64::EPSILON);
        all.drawn = elapsed.mul_f64(share);
        all.ran = elapsed.saturating_sub(all.drawn);
        Ok(all)
    }

    /// One view, turned clockwise by `rotation`: the faces that it shows whole.
    async fn look(&self, view: View, rotation: u32) -> Result<Seen, AnalyzeError> {
        let engine = self.analyzer.engine();
        let view = View { letterbox: engine.placed(view.letterbox), ..view };
        let drawn = self.analyzer.pixels().shown(self.frame, view, rotation, self.lane).await?;
        let Shown { frame, letterbox } = drawn.output;
        let min_score = self.settings.min_score;
        let faint = engine.detector().min_score * FAINT;
        let timed = engine.detect_frame(frame, letterbox, faint.min(min_score), self.lane).await?;
        let mut seen =
            Seen { queued: drawn.queued + timed.queued, drawn: drawn.ran, ran: timed.ran, ..Seen::default() };
        for face in timed.output {
            let tiny = longer(&face) < TINY && face.det_score >= faint;
            let face = view.restore(&turn::back(&face, view.letterbox.canvas, rotation));
            if view.cuts(&face.bbox) {
                continue;
            }
            seen.tiny += usize::from(tiny);
            if face.det_score >= min_score {
                seen.detections.push(face);
            }
        }
        keep_best(&mut seen.detections, VIEW_FACES);
        Ok(seen)
    }

    /// Drops what other views have seen better. The comparisons grow with the square of the faces, so many are compared on the threads for work on
    /// pixels.
    async fn suppress(
        &self,
        faces: Vec<Detection>,
        timings: &mut Timings,
    ) -> Result<Vec<Detection>, AnalyzeError> {
        let iou = self.analyzer.engine().detector().nms_iou;
        if faces.len() <= FEW_FACES {
            return Ok(nms(faces, iou));
        }
        let kept = self.analyzer.cpu().run(move || nms(faces, iou)).await?;
        timings.queue += kept.queued;
        timings.detect += kept.ran;
        Ok(kept.output)
    }

    fn image(&self) -> (u32, u32) {
        (self.frame.width(), self.frame.height())
    }
}

impl Seen {
    fn account(&self, timings: &mut Timings) {
        timings.queue += self.queued;
        timings.letterbox += self.drawn;
        timings.detect += self.ran;
    }
}

/// Adds the faces of further views. Those that would not be compared in the end go when there are twice as many, so that a large picture holds no
/// more of them and each is looked at a few times at most.
fn gather(all: &mut Vec<Detection>, more: &mut Vec<Detection>) {
    all.append(more);
    if all.len() > 2 * MAX_CANDIDATES {
        keep_best(all, MAX_CANDIDATES);
    }
}

fn longer(face: &Detection) -> f32 {
    face.bbox.width.max(face.bbox.height)
}

fn total_score(detections: &[Detection]) -> f32 {
    detections.iter().map(|d| d.det_score).sum()
}
