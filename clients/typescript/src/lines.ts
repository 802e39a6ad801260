// Types of the lines of exports and other streams. The OpenAPI document describes them by examples,
// with which a test compares these types.
import type { BoundingBox, DetectedFace, ModelNames, Quality, VideoState } from "./types.js";

/** A box at a time: time in milliseconds, x, y, width and height in pixels. */
export type TimedBox = [atMs: number, x: number, y: number, width: number, height: number];

/** A face of an export. */
export interface ExportedFace {
  face_id: string;
  bbox: BoundingBox;
  /** The detector's confidence, 0 to 1. */
  det_score: number;
  /** Eyes, nose and corners of the mouth, in pixels. */
  landmarks: [x: number, y: number][];
  quality: Quality | null;
  embedding_model: string;
  /** Present only if the call set `embeddings`. */
  embedding?: number[];
}

/** An image of an export, with its faces and the places where it was found. */
export interface ExportedImage {
  kind: "image";
  image_id: string;
  sha256: string;
  phash: string | null;
  width: number;
  height: number;
  format: string;
  bytes: number;
  rotation: number;
  created_at: string;
  /** The first 100 places. */
  sources: { page_url: string | null; image_url: string; alt: string | null; found_at: string }[];
  /** Number of places. Counting stops at 1,000. */
  sources_total: number;
  /** Whether `sources` is incomplete. */
  sources_cut: boolean;
  faces: ExportedFace[];
}

/** A video of an export. */
export interface ExportedVideo {
  kind: "video";
  video_id: string;
  state: VideoState;
  sha256: string | null;
  bytes: number | null;
  codec: string | null;
  width: number | null;
  height: number | null;
  duration_ms: number | null;
  read_ms: number | null;
  frames: number;
  people: number | null;
  unidentified_tracks: number;
  reason: string | null;
  original_id: string | null;
  created_at: string;
  finished_at: string | null;
  sources: { page_url: string | null; video_url: string | null; found_at: string }[];
  sources_total: number;
  sources_cut: boolean;
}

/** A track of an export: one face in successive frames of a video. */
export interface ExportedTrack {
  kind: "track";
  track_id: string;
  video_id: string;
  person: number | null;
  start_ms: number;
  end_ms: number;
  samples: number;
  faces: (ExportedFace & { at_ms: number; image_id: string })[];
  boxes: TimedBox[];
}

/** A line of `exportCrawl`. */
export type CrawlExportLine = ExportedImage | ExportedVideo | ExportedTrack;

/** A line of `exportVideo`. */
export type VideoExportLine = ExportedVideo | ExportedTrack;

/** The result of one file of `importSubjects`. */
export interface ImportedFile {
  kind: "file";
  file: string;
  /** The name of the person. */
  name: string | null;
  /** The result, such as `enrolled`; docs/how-to/PEOPLE.md lists all results. */
  outcome: string;
  reason: string | null;
  /** The reason as a sentence. */
  detail: string | null;
  /** Requirements of the quality profile that the face fails. */
  unmet: string[];
  /** The other person whom the face resembles. */
  similar: { subject_id: string | null; name: string | null; similarity: number } | null;
  subject_id: string | null;
  image_id: string | null;
  face_id: string | null;
}

/** The counts of `importSubjects`. The import is complete only if this line was received. */
export interface ImportSummary {
  kind: "summary";
  files: number;
  /** Number of files by result. */
  outcomes: Record<string, number>;
  subjects_created: number;
  dry_run: boolean;
}

/** A line of `importSubjects`. */
export type ImportLine = ImportedFile | ImportSummary;

/** An analysed frame of `detectVideo`. */
export interface VideoFrame {
  at_ms: number;
  faces: { box: [x: number, y: number, width: number, height: number]; det_score: number }[];
}

/** The last line of `detectVideo`: the people of the video, and when they are visible. */
export interface VideoResult {
  video: {
    container: string;
    codec: string;
    width: number;
    height: number;
    duration_ms: number | null;
    keyframes: number;
    frames: number;
    tolerance_ms: number | null;
    /** Why the video ends early or lacks frames. */
    damage: { truncated: boolean; message: string } | null;
  };
  people: number;
  tracks: {
    track: number;
    person: number | null;
    start_ms: number;
    end_ms: number;
    to_end: boolean;
    samples: number;
    faces: (DetectedFace & { at_ms: number })[];
    boxes: TimedBox[];
  }[];
  models: ModelNames;
  timings_ms: { index: number; total: number };
}

/** A line of `detectVideo`: a frame, or the result. Only the result has `tracks`. */
export type VideoLine = VideoFrame | VideoResult;
