// Parts that several views use to show and control a crawl.
import { call, deleteWithPreview } from "./api.js";
import { h, put } from "./dom.js";
import { count, plural, shortUrl, title } from "./format.js";
import { shares } from "./geometry.js";
import { chip, confirm, toast } from "./ui.js";

const TONES = { running: "busy", paused: "warn", completed: "ok", cancelled: "", failed: "bad" };

export const stateChip = (state) => chip(title(state), TONES[state] ?? "");

export const isOver = ({ state }) => ["completed", "cancelled", "failed"].includes(state);

/** Returns a short name of a crawl: its first seed. */
export const name = ({ seeds, seed_count: all }, most = 48) =>
  `${shortUrl(seeds[0] ?? "", most)}${all > 1 ? ` and ${all - 1} more` : ""}`;

/** The outcomes in the order of the bar, each with its name in the counts and its colour. */
export const PAGES = [["fetched", "good"], ["skipped", "dim"], ["failed", "bad"], ["queued", "rest"]];
export const IMAGES = [["processed", "good"], ["duplicate", "same"], ["skipped", "dim"], ["suppressed", "held"], ["failed", "bad"], ["queued", "rest"]];

export const VIDEOS = [["completed", "good"], ["cancelled", "dim"], ["failed", "bad"], ["running", "same"], ["paused", "held"], ["queued", "rest"]];

/** Returns the number of settled items and of all known items. */
export function done(counts) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  return { done: all - counts.queued, all };
}

/**
 * Returns a bar of outcomes that can be drawn again with new counts. `legend` adds the numbers
 * below the bar.
 */
export function outcomes(parts, legend = true) {
  const segments = parts.map(([, colour]) => h(`span.${colour}`));
  const numbers = parts.map(() => h("b"));
  const items = parts.map(([code, colour], at) => h("li", {}, h(`span.dot.${colour}`, { "aria-hidden": "true" }), `${title(code)} `, numbers[at]));
  const element = h("div", {}, h("div.stack", { "aria-hidden": "true" }, segments), legend && h("ul.legend", {}, items));
  const draw = (counts) => {
    const widths = shares(parts.map(([code]) => counts[code]));
    parts.forEach(([code], at) => {
      segments[at].style.setProperty("--width", `${widths[at]}%`);
      put(numbers[at], count(counts[code]));
      items[at].classList.toggle("none", counts[code] === 0);
    });
  };
  return { element, draw };
}

/** Pauses, resumes or cancels a crawl. Resolves to the updated crawl. */
export const changeState = (id, step) => call("POST", `/crawls/${id}/${step}`);

/** Asks for confirmation and cancels a crawl. */
export async function cancel(crawl) {
  const sure = await confirm("Cancel this crawl?", "Its results are kept. Queued pages and images are dropped, and the reading of its videos ends. A cancelled crawl cannot be resumed.", "Cancel the crawl");
  return sure && changeState(crawl.id, "cancel");
}

/** Asks for confirmation and deletes a crawl. Resolves to whether it was deleted. */
export async function remove(crawl) {
  const sure = await confirm("Delete this crawl?", `This permanently deletes the record of ${name(crawl)}: its pages, image URLs and outcomes.`, "Delete",
    { option: "Also erase its images, its videos and their faces, unless another crawl or scan found them too" });
  if (!sure) return false;
  const path = `/crawls/${crawl.id}`;
  const deleted = await deleteWithPreview(path, { with_images: sure.ticked });
  const preview = sure.ticked && deleted;
  toast(preview ? `The crawl, ${plural(preview.images, "image")}${preview.videos > 0 ? `, ${plural(preview.videos, "video")}` : ""} and ${plural(preview.faces, "face")} were erased.` : "The crawl was deleted.");
  return true;
}
