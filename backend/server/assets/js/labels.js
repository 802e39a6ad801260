// Texts for the codes of the API. An unknown code is shown unchanged, so that no information is
// hidden.
import { title } from "./format.js";
import { REASONS } from "./reasons.js";

const QUALITY = {
  too_blurry: "Too blurry",
  too_dark: "Too dark",
  too_bright: "Too bright",
  low_contrast: "Contrast too low",
  clipped: "Highlights or shadows are clipped",
  too_small: "Too small",
  turned_away: "Turned away",
  not_upright: "Not upright in the image",
  truncated: "Cut off by the edge",
  low_score: "Low detector score",
};

const MEASURES = [
  ["det_score", "Detector", ""],
  ["size", "Eye distance", "px"],
  ["blur", "Focus", "(Laplacian)"],
  ["sharpness", "Sharpness", "(Tenengrad)"],
  ["brightness", "Brightness", "of 255"],
  ["contrast", "Contrast", ""],
  ["exposure", "Exposure", "clipped"],
  ["truncation", "Framing", "inside"],
  ["learned", "Learned", "by a model"],
];

const SCOPES = {
  analyze: "Detect faces in uploaded images and clips; compare faces; assess and enhance images.",
  read: "Read collections, crawls, videos, people, and stored images and faces with their files.",
  search: "Search a collection for a face.",
  crawl: "Create crawls. Pause, resume and cancel crawls and videos.",
  write: "Enrol, change, merge and cluster people. Add videos.",
  watch: "Create, change and delete watchlists; read and acknowledge alerts; see, start and stop cameras.",
  erase: "Delete faces, images, videos, people and crawls; create erasures.",
  system: "Read devices and metrics of the whole service; read and retry its jobs.",
  admin: "Create, change and delete collections; lift suppressions; read the audit log.",
  keys: "Create, list and revoke keys. A key cannot create a key that allows more than itself.",
};

const ACTIONS = {
  "face.search": "Searched for a face",
  "face.delete": "Face deleted",
  "image.delete": "Image deleted",
  "video.delete": "Video deleted",
  "subject.delete": "Person deleted",
  "subject.import": "People imported",
  "subject.merge": "People merged",
  "subject.remove_face": "Face removed from a person",
  "crawl.delete": "Crawl deleted",
  "watchlist.create": "Watchlist created",
  "watchlist.update": "Watchlist changed",
  "watchlist.delete": "Watchlist deleted",
  "watchlist.ended": "Watchlist ended after its expiry",
  "alert.update": "Alert acknowledged or its note changed",
  "alert.redeliver": "Alert sent again",
  "alert.export": "Alerts exported",
  "stream.start": "Camera started",
  "stream.stop": "Camera stopped",
  "stream.still": "Picture of a camera requested",
  "key.create": "Key created",
  "key.revoke": "Key revoked",
  "collection.create": "Collection created",
  "collection.update": "Collection changed",
  "collection.webhook_secret": "Webhook secret created",
  "collection.delete": "Collection deleted",
  "collection.erased": "Collection completely erased",
  "erasure.create": "Data erased",
  "erasure.lifted": "Suppressions lifted",
  "erasure.reapplied": "Data erased again after a restore",
  "erasure.preview": "Erasure previewed",
  "retention.erased": "Data erased by retention",
  "image.superseded": "Smaller versions replaced by a larger one",
  "image.kept_beside_larger": "Larger version stored without the faces of the smaller ones, which were kept",
};

const KINDS = {
  likeness: "A person, by an image",
  face: "A face",
  image: "An image",
  video: "A video",
  subject: "An enrolled person",
  url: "A URL",
};

const PROFILES = { off: "Off", standard: "Standard", strict: "Strict" };

/** Returns what a scope allows. */
export const scopeMeaning = (scope) => SCOPES[scope] ?? title(scope);

export const scopes = () => Object.keys(SCOPES);

/** Returns the text for an action of the audit log. */
export const action = (code) => ACTIONS[code] ?? title(code.replaceAll(".", " "));

export const actions = () => Object.entries(ACTIONS);

/** Returns the text for the kind of an erasure. */
export const erasureKind = (code) => KINDS[code] ?? title(code);

/**
 * Returns the text for the quality profile of a collection. Null stands for the default of the
 * service.
 */
export const profile = (code) => (code === null ? "Service default" : (PROFILES[code] ?? title(code)));

export const profiles = () => Object.entries(PROFILES);

/** Returns the text for a reason why a face does not meet the profile. */
export const qualityReason = (code) => QUALITY[code] ?? title(code);

/** Returns the measures of a face: code, name and unit of the raw value. */
export const measures = () => MEASURES;

/** Returns the text for a reason why a page or an image was not processed. */
export function outcome(code) {
  const status = /^http_(\d{3})$/.exec(code);
  return status ? `The server responded with HTTP ${status[1]}` : (REASONS[code] ?? title(code));
}
