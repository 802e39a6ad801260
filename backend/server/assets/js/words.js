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
  queue_failure: "The job was lost",
};

/** A reason why a face does not meet the profile. */
export const qualityReason = (code) => QUALITY[code] ?? title(code);

/** Rows of a face's measures: code, name, unit of the raw value. */
export const measures = () => MEASURES;

/** A reason why a page or an image was not processed. */
export function outcome(code) {
  const status = /^http_(\d{3})$/.exec(code);
  return status ? `The host answered ${status[1]}` : (OUTCOMES[code] ?? title(code));
}
