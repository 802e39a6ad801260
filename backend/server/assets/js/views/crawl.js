// The view of one crawl, with live updates.
import { get } from "../api.js";
import { IMAGES, PAGES, VIDEOS, cancel, changeState, done, isOver, name, outcomes, remove, stateChip } from "../crawls.js";
import { h, put } from "../dom.js";
import { endless } from "../endless.js";
import { follow } from "../events.js";
import { exports } from "../exports.js";
import { externalLink, tile } from "../faces.js";
import { count, duration, figure, time, title } from "../format.js";
import { outcome } from "../labels.js";
import { plot } from "../plot.js";
import { go, href } from "../router.js";
import { busy, button, facts, failed, fillWith, heading, linkButton, panel, problemBox } from "../ui.js";

const MOST_SEEDS = 100;

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, () => get(`/crawls/${id}`, {}, signal), (crawl) => draw(crawl, signal));
}

function draw(first, signal) {
  const { id } = first;
  const [top, actions, now, reasons, strip] = [h("div.chips"), h("div.actions"), h("dl.big"), h("div"), h("div")];
  const [pages, images, videos] = [PAGES, IMAGES, VIDEOS].map((parts) => outcomes(parts));
  const rates = plot("Images per second", { unit: "/s" });
  const meter = speed();
  let last = null;

  const update = (crawl) => {
    meter.record(crawl);
    pages.draw(crawl.counts.pages);
    images.draw(crawl.counts.images);
    videos.draw(crawl.counts.videos);
    put(top, stateChip(crawl.state), crawl.error && h("span", {}, crawl.error));
    if (!last || last.state !== crawl.state || last.next_run_at !== crawl.next_run_at) put(actions, controls(crawl, (changed) => (update(changed), listen())));
    put(reasons, reasonTable(crawl.reasons), overLimit(crawl.counts.over_limit), leftOut(crawl.counts.links_left_out));
    if (!last || last.counts.faces !== crawl.counts.faces) faces.requestNewest();
    last = crawl;
    numbers();
  };
  const numbers = () => {
    const seconds = ((last.finished_at ? new Date(last.finished_at) : Date.now()) - new Date(last.created_at)) / 1000;
    const { done: settled } = done(last.counts.images);
    const rate = isOver(last) ? settled / Math.max(seconds, 0.001) : meter.now();
    put(now, [["Pages", count(done(last.counts.pages).done)], ["Images", count(settled)], ["Faces", count(last.counts.faces)],
      [isOver(last) ? "Images/s overall" : "Images/s", figure(rate)], [isOver(last) ? "Duration" : "Running for", duration(seconds)]]
      .map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
    if (!isOver(last)) rates.add(rate);
  };
  const faces = recent(id, strip, signal);

  // The stream begins with the current state. After the user changes the crawl in this view, the
  // stream is opened again. Otherwise, if another client reverts the change before the service
  // polls the state, the service detects no change and sends no event.
  let stream = new AbortController();
  const listen = () => {
    stream.abort();
    stream = new AbortController();
    follow(`/crawls/${id}/events`, AbortSignal.any([signal, stream.signal]), (event, crawl) => (update(crawl), event !== "done"))
      .catch(failed);
  };

  update(first);
  if (!isOver(first)) {
    const timer = setInterval(() => (isOver(last) ? clearInterval(timer) : numbers()), 1000);
    signal.addEventListener("abort", () => clearInterval(timer));
    listen();
  }
  return [
    heading(name(first), actions), top, now,
    h("div.pair", {},
      panel("Outcomes", h("h3", {}, "Images"), images.element, h("h3", {}, "Pages"), pages.element,
        (first.options.videos || Object.values(first.counts.videos).some((n) => n > 0)) && [h("h3", {}, "Videos"), videos.element, linkButton("Show the videos", href("/videos", { crawl_id: id }))], !isOver(first) && rates.element),
      panel("Not processed", reasons, unprocessed(id, signal))),
    panel("Newest faces", strip),
    h("div.pair", {}, panel("Export", exports(`/crawls/${id}/export`, `crawl-${id}`, "Every image and video with its sources and faces, one per line. The tracks of a video follow it.")), panel("Options", options(first))),
  ];
}

function controls(crawl, update) {
  const step = (label, symbol, act, kind) => {
    const control = button(label, { symbol, kind, onclick: () => busy(control, async () => {
      const changed = await act();
      if (changed) update(changed);
    }) });
    return control;
  };
  const over = isOver(crawl);
  return [
    crawl.state === "running" && step("Pause", "pause", () => changeState(crawl.id, "pause")),
    crawl.state === "paused" && step("Resume", "play", () => changeState(crawl.id, "resume"), "primary"),
    (!over || crawl.next_run_at) && step(over ? "Stop repeating" : "Cancel", "stop", () => cancel(crawl)),
    over && !crawl.next_run_at && step("Delete", "trash", async () => {
      if (await remove(crawl)) go("/crawls");
    }, "danger"),
  ];
}

/** Measures images per second over the last ten seconds. */
function speed() {
  const samples = [];
  return {
    record: (crawl) => samples.push([Date.now(), done(crawl.counts.images).done]),
    now: () => {
      while (samples.length > 2 && Date.now() - samples[1][0] > 10_000) samples.shift();
      const seconds = (Date.now() - samples[0][0]) / 1000;
      return seconds < 0.5 ? NaN : (samples.at(-1)[1] - samples[0][1]) / seconds;
    },
  };
}

/**
 * Shows the newest faces. Requests the faces at most every two seconds, and the first face as soon
 * as it exists.
 */
function recent(id, slot, signal) {
  let [asking, again] = [false, false];
  const requestNewest = async () => {
    if (asking) return void (again = true);
    [asking, again] = [true, false];
    const answer = await get("/faces", { crawl_id: id, limit: 12 }, signal).catch((problem) => problem);
    if (signal.aborted) return;
    if (answer instanceof Error) put(slot, problemBox(answer, requestNewest));
    else if (answer.faces.length === 0) put(slot, h("p.quiet", {}, "No faces found yet."));
    else put(slot, h("div.grid.small", {}, answer.faces.map((face) => tile(face, signal))), h("p", {}, linkButton("All faces of this crawl", href("/faces", { crawl_id: id, all: true }), { symbol: "faces" })));
    setTimeout(() => ((asking = false), again && !signal.aborted && requestNewest()), answer.faces?.length > 0 ? 2000 : 100);
  };
  return { requestNewest };
}

function reasonTable(reasons) {
  const rows = Object.entries(reasons).sort((a, b) => b[1] - a[1]);
  if (rows.length === 0) return h("p.quiet", {}, "All pages and images found so far were processed.");
  return h("table.reasons", {},
    h("caption.hidden", {}, "Why pages and images were not processed"),
    h("tbody", {}, rows.map(([code, n]) => h("tr", {}, h("th", { scope: "row", title: code }, outcome(code)), h("td.number", {}, count(n))))));
}

/** Returns a sentence about links that the limits of the crawl left out, or null. */
function overLimit(counts) {
  const parts = Object.entries(counts).filter(([, n]) => n > 0).map(([what, n]) => `${count(n)} links to ${what}`);
  return parts.length === 0 ? null : h("p", {}, `The limits of this crawl left out ${parts.join(", ")}. Start a crawl with higher limits to follow them.`);
}

/** Returns a sentence about links that were not followed, or null. */
function leftOut(counts) {
  const parts = Object.entries(counts).map(([reason, n]) => `${count(n)}: ${outcome(reason)}`);
  return parts.length === 0 ? null : h("p", {}, `Links that were not followed: ${parts.join("; ")}.`);
}

/** Returns the list of images that were not processed. It is loaded when the user opens it. */
function unprocessed(id, signal) {
  const [rows, end] = [h("ul.sources"), h("div.end")];
  const list = endless(end, signal, {
    more: "More images",
    ask: (cursor) => get(`/crawls/${id}/unprocessed-images`, { limit: 50, cursor }, signal),
    add: ({ images }) => {
      rows.append(...images.map((image) => h("li", {}, externalLink(image.url), h("span.quiet", {}, `: ${outcome(image.reason)}`))));
      return images.length;
    },
    none: () => h("p.quiet", {}, "All images found so far were processed."),
  });
  const element = h("details.unprocessed", {}, h("summary", {}, "Images that were not processed"), rows, end);
  element.addEventListener("toggle", () => element.open && (put(rows), list.begin()));
  return element;
}

function options(crawl) {
  const chosen = Object.entries(crawl.options).filter(([, value]) => value !== null && !(Array.isArray(value) && value.length === 0));
  return [
    facts([
      ["Started", time(crawl.created_at)],
      crawl.next_run_at && ["Next run", time(crawl.next_run_at)],
      crawl.series_id && ["Series", h("a", { href: href(`/crawls/${crawl.series_id}`) }, "First run")],
      ["Collection", crawl.collection],
      ...chosen.map(([name, value]) => [title(name), value === true ? "Yes" : value === false ? "No" : Array.isArray(value) ? value.join(", ") : String(value)]),
    ]),
    h("details", {}, h("summary", {}, "Seeds"), h("ul.sources", {}, crawl.seeds.slice(0, MOST_SEEDS).map((seed) => h("li", {}, externalLink(seed))),
      crawl.seed_count > MOST_SEEDS && h("li.quiet", {}, `and ${count(crawl.seed_count - MOST_SEEDS)} more`))),
  ];
}
