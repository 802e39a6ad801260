// The list of videos, newest first, and the upload of a video.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h, icon } from "../dom.js";
import { ago, count } from "../format.js";
import { go, href, setQuery } from "../router.js";
import { may } from "../session.js";
import { busy, button, empty, failed, fillWith, heading, loading } from "../ui.js";
import { isOver, name, progress, send, stateChip } from "../videos.js";

const STATES = ["", "queued", "running", "paused", "completed", "cancelled", "failed"];
const SAMPLINGS = [["auto", "One frame every 2 seconds"], ["auto+refine", "One frame every 2 seconds, 4 per second where faces are visible"], ["keyframes", "Keyframes only (fastest)"], ["fps=5", "5 frames per second (exact times)"]];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const filter = h("select", { "aria-label": "State", value: query.state ?? "" },
    STATES.map((state) => h("option", { value: state, selected: state === (query.state ?? "") }, state || "All states")));
  const list = h("div");
  const { crawl_id, stream } = query;
  const params = (cursor) => ({ collection: collections.current(), state: filter.value, crawl_id, stream, cursor });
  filter.addEventListener("change", () => (setQuery({ state: filter.value, crawl_id, stream }), start()));
  page.append(heading(crawl_id ? "Videos of a crawl" : stream ? `Stored faces of ${stream}, by day` : "Videos", filter), may("write") && !crawl_id && !stream && upload(signal), list);

  let earlier = new AbortController();
  start();
  async function start() {
    // The answer for an earlier filter may still arrive. It must not be shown, nor followed.
    earlier.abort();
    earlier = new AbortController();
    const wanted = AbortSignal.any([signal, earlier.signal]);
    await fillWith(list, wanted, () => get("/videos", params(), wanted), (answer) => draw(answer, wanted));
  }
  function draw(answer, wanted) {
    if (answer.videos.length === 0) {
      if (stream) return empty("videos", "Nothing is stored of this camera.");
      return filter.value || crawl_id
        ? empty("videos", `There are no ${filter.value ? `${filter.value} ` : ""}videos${crawl_id ? " of this crawl" : ""}.`)
        : empty("videos", "The service finds who appears in a video, and when. It does not keep the file.");
    }
    const rows = h("ul.crawls", {}, answer.videos.map(row));
    watch(answer.videos, rows, wanted);
    return [rows, more(answer.next_cursor, rows)];
  }
  function more(cursor, rows) {
    if (!cursor) return null;
    const control = button("Older videos", { onclick: () => busy(control, async () => {
      const answer = await get("/videos", params(cursor), signal);
      rows.append(...answer.videos.map(row));
      control.replaceWith(...[more(answer.next_cursor, rows)].filter(Boolean));
    }) });
    return h("p.center", {}, control);
  }
  /** Reloads the first page periodically while one of its videos is read. */
  function watch(videos, rows, wanted) {
    if (videos.every(isOver)) return;
    setTimeout(async () => {
      // After a change of the filter, the new list has a timer of its own.
      const answer = wanted.aborted ? null : await get("/videos", params(), wanted).catch(() => null);
      if (wanted.aborted) return;
      for (const video of answer?.videos ?? []) {
        const old = rows.querySelector(`[data-id="${video.id}"]`);
        // Only changed rows are replaced, so that an unchanged row keeps the focus.
        if (!old || old.dataset.text === JSON.stringify(video)) continue;
        const fresh = row(video);
        const focused = old.contains(document.activeElement);
        old.replaceWith(fresh);
        if (focused) fresh.querySelector("a").focus();
      }
      watch(answer?.videos ?? videos, rows, wanted);
    }, 2000);
  }
}

function row(video) {
  const item = h("li.crawl", { "data-id": video.id },
    h("div.crawlname", {},
      h("a.strong", { href: href(`/videos/${video.id}`) }, name(video)),
      h("span.quiet", {}, ago(video.created_at))),
    h("div.crawlstate", {}, stateChip(video.state)),
    h("div.crawlbar", {}, h("span.quiet", {}, progress(video))),
    h("dl.numbers", {},
      h("div", {}, h("dt", {}, "Frames"), h("dd", {}, count(video.frames))),
      h("div", {}, h("dt", {}, "People"), h("dd", {}, video.people === null ? "–" : count(video.people)))));
  item.dataset.text = JSON.stringify(video);
  return item;
}

/** Returns the form that sends a file. */
function upload(signal) {
  const file = h("input.hidden", { type: "file", accept: "video/*,.mkv,.ts,.flv,.avi", onchange: () => file.files[0] && take(file.files[0]) });
  const sampling = h("select", { "aria-label": "Frames" }, SAMPLINGS.map(([value, label]) => h("option", { value }, label)));
  const status = h("div");
  const choose = h("label.button.primary", {}, icon("upload"), "Add a video", file);
  async function take(chosen) {
    status.replaceChildren(loading(`Sending ${chosen.name}…`));
    file.disabled = true;
    try {
      const [frames, refine] = sampling.value.split("+");
      const video = await send(chosen, { collection: collections.current(), sampling: frames, refine: refine && true }, signal);
      go(`/videos/${video.id}`);
    } catch (problem) {
      failed(problem);
    } finally {
      status.replaceChildren();
      [file.disabled, file.value] = [false, ""];
    }
  }
  return h("div.actions", {}, choose, sampling, status);
}
