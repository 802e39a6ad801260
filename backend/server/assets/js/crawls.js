// What several views say of a crawl.
import { call } from "./api.js";
import { h, put } from "./dom.js";
import { count, plural, shortUrl, title } from "./format.js";
import { shares } from "./geometry.js";
import { chip, confirm, toast } from "./ui.js";

const TONES = { running: "busy", paused: "warn", completed: "ok", cancelled: "", failed: "bad" };

export const stateChip = (state) => chip(title(state), TONES[state] ?? "");

export const isOver = ({ state }) => ["completed", "cancelled", "failed"].includes(state);

/** Where it began, short. */
export const name = ({ seeds, seed_count: all }, most = 48) =>
  `${shortUrl(seeds[0] ?? "", most)}${all > 1 ? ` and ${all - 1} more` : ""}`;

/** Outcomes in the order of the bar: name in the counts, colour. */
export const PAGES = [["fetched", "good"], ["skipped", "dim"], ["failed", "bad"], ["queued", "rest"]];
export const IMAGES = [["processed", "good"], ["duplicate", "same"], ["skipped", "dim"], ["suppressed", "held"], ["failed", "bad"], ["queued", "rest"]];

/** Everything that is settled, and everything that is known. */
export function done(counts) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  return { done: all - counts.queued, all };
}

/** A bar of outcomes that can be drawn again with new counts. `legend`: with the numbers below. */
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

/** Pause, resume or cancel; resolves to the crawl as it is then. */
export const steer = (id, step) => call("POST", `/crawls/${id}/${step}`);

/** Asks, cancels. */
export async function cancel(crawl) {
  const sure = await confirm("Cancel this crawl?", "What it has found stays. What is still queued is dropped, and a crawl cannot be taken up again.", "Cancel the crawl");
  return sure && steer(crawl.id, "cancel");
}

/** Asks, deletes; resolves to whether it is gone. */
export async function remove(crawl) {
  const sure = await confirm("Delete this crawl?", `The record of ${name(crawl)} goes for good: its pages, image addresses and outcomes.`, "Delete",
    { option: "Also erase its images and their faces, unless another crawl found them too" });
  if (!sure) return false;
  const path = `/crawls/${crawl.id}`;
  // However many images go, the service wants to hear that somebody has looked.
  const look = sure.ticked && (await call("DELETE", path, { query: { with_images: true, dry_run: true } }));
  await call("DELETE", path, { query: { with_images: sure.ticked, confirm: look ? look.confirm : undefined } });
  toast(look ? `The crawl, ${plural(look.images, "image")} and ${plural(look.faces, "face")} were erased.` : "The crawl was deleted.");
  return true;
}
