// What the codes of the API mean. A code that is not here is shown as it is written, so that nothing is ever hidden.
import { title } from "./format.js";

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

const OUTCOMES = {
  robots_disallowed: "robots.txt does not allow it",
  robots_unavailable: "robots.txt could not be read",
  noindex: "The page asks not to be indexed",
  noimageindex: "Its images are not to be indexed",
  not_html: "Not a page",
  is_an_image: "An image, taken as one",
  not_an_image: "Not an image",
  unsupported_format: "A format that is not read",
  corrupt_image: "Damaged image",
  image_too_large: "Too many pixels",
  too_many_bytes: "Too many bytes",
  timeout: "The host took too long",
  dns_failure: "The host is unknown",
  connect_failure: "The host did not answer",
  forbidden_address: "An address that must not be reached",
  forbidden_url: "A URL that must not be fetched",
  too_many_redirects: "Too many redirects",
  superseded: "Replaced by a larger version",
  out_of_scope: "Outside the crawl's scope",
  directory_full: "Enough pages of its directory",
  no_sitemap: "No sitemap there",
  suppressed_url: "Its address was erased and is kept out",
  suppressed_image: "The picture was erased and is kept out",
  suppressed_face: "Its faces were erased and are kept out",
  suppressed_person: "Everyone in it is kept out",
  faces_suppressed: "Stored without faces that are kept out",
  queue_failure: "The job was lost",
};

const SCOPES = {
  analyze: "Detect, compare, judge and enhance pictures that are sent along.",
  read: "See collections, crawls, images, faces and their pictures.",
  search: "Search a collection for a face.",
  crawl: "Create, pause, resume and cancel crawls.",
  write: "Enrol people, and change what is enrolled.",
  erase: "Delete faces, images and crawls; erasures.",
  system: "Devices, metrics and jobs of the whole service.",
  admin: "Make, change and delete collections; let in again what is kept out; read the audit log.",
  keys: "Make and revoke keys that may do no more than this one.",
};

const ACTIONS = {
  "face.search": "Search for a face",
  "face.delete": "Face deleted",
  "image.delete": "Image deleted",
  "subject.delete": "Person deleted",
  "subject.merge": "People merged",
  "subject.remove_face": "Face taken from a person",
  "crawl.delete": "Crawl deleted",
  "key.create": "Key made",
  "key.revoke": "Key revoked",
  "collection.create": "Collection made",
  "collection.update": "Collection changed",
  "collection.webhook_secret": "New secret for webhooks",
  "collection.delete": "Collection deleted",
  "collection.erased": "Collection erased to the end",
  "erasure.create": "Erasure",
  "erasure.lifted": "Let in again what was kept out",
  "erasure.reapplied": "Erased once more after a restore",
  "erasure.preview": "Look at what would be erased",
  "retention.erased": "Erased by retention",
  "image.superseded": "Smaller versions replaced by a larger one",
  "image.kept_beside_larger": "Larger version without a stored face kept beside the smaller one",
};

const KINDS = {
  likeness: "A person, by a picture",
  face: "A face",
  image: "An image",
  subject: "An enrolled person",
  url: "An address",
};

const PROFILES = { off: "Nothing", standard: "Standard", strict: "Strict" };

/** What a scope allows. */
export const scopeMeaning = (scope) => SCOPES[scope] ?? title(scope);

export const scopes = () => Object.keys(SCOPES);

/** What was done, as the audit log has it. */
export const action = (code) => ACTIONS[code] ?? title(code.replaceAll(".", " "));

export const actions = () => Object.entries(ACTIONS);

/** By what an erasure was asked for. */
export const erasureKind = (code) => KINDS[code] ?? title(code);

/** What a collection judges faces by; null is the service's own. */
export const profile = (code) => (code === null ? "As the service" : (PROFILES[code] ?? title(code)));

export const profiles = () => Object.entries(PROFILES);

/** A reason why a face does not meet the profile. */
export const qualityReason = (code) => QUALITY[code] ?? title(code);

/** Rows of a face's measures: code, name, unit of the raw value. */
export const measures = () => MEASURES;

/** A reason why a page or an image was not processed. */
export function outcome(code) {
  const status = /^http_(\d{3})$/.exec(code);
  return status ? `The host answered ${status[1]}` : (OUTCOMES[code] ?? title(code));
}
