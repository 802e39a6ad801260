// Texts for the codes of the API. An unknown code is shown as it is, so that nothing is hidden.
import { title } from "./format.js";
import { REASONS } from "./reasons.js";

const QUALITY = {
  too_blurry: "Too blurry",
  too_dark: "Too dark",
  too_bright: "Too bright",
  low_contrast: "Too little contrast",
  clipped: "Highlights or shadows are clipped",
  too_small: "Too small",
  turned_away: "Turned away",
  truncated: "Cut off by the edge",
  low_score: "The detector is unsure",
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
  analyze: "Detect and compare faces in uploaded pictures; assess and enhance the pictures.",
  read: "See collections, crawls, images, faces and their pictures.",
  search: "Search a collection for a face.",
  crawl: "Create, pause, resume and cancel crawls.",
  write: "Enrol people and change enrolled people.",
  erase: "Delete faces, images and crawls; create erasures.",
  system: "Devices, metrics and jobs of the whole service.",
  admin: "Create, change and delete collections; lift suppressions; read the audit log.",
  keys: "Create and revoke keys with at most the rights of this one.",
};

const ACTIONS = {
  "face.search": "Search for a face",
  "face.delete": "Face deleted",
  "image.delete": "Image deleted",
  "subject.delete": "Person deleted",
  "subject.merge": "People merged",
  "subject.remove_face": "Face removed from a person",
  "crawl.delete": "Crawl deleted",
  "key.create": "Key created",
  "key.revoke": "Key revoked",
  "collection.create": "Collection created",
  "collection.update": "Collection changed",
  "collection.webhook_secret": "New secret for webhooks",
  "collection.delete": "Collection deleted",
  "collection.erased": "Collection completely erased",
  "erasure.create": "Erasure",
  "erasure.lifted": "Suppressions lifted",
  "erasure.reapplied": "Erased again after a restore",
  "erasure.preview": "Preview of an erasure",
  "retention.erased": "Erased by retention",
  "image.superseded": "Smaller versions replaced by a larger one",
  "image.kept_beside_larger": "Larger version without a stored face kept beside the smaller one",
};

const KINDS = {
  likeness: "A person, by a picture",
  face: "A face",
  image: "An image",
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
 * Returns the text for the quality profile of a collection; null means the default of the service.
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
