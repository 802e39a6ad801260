// Shows when each person is visible in a video: a lane per person, a bar per track.
import { get } from "./api.js";
import { h, put } from "./dom.js";
import { count, plural } from "./format.js";
import { crop } from "./picture.js";
import { href } from "./router.js";
import { busy, button, problemBox } from "./ui.js";
import { isOver, position } from "./videos.js";

/** Number of tracks that one request loads, and that are added at a time. */
const PAGE = 500;

/**
 * Returns the lanes of a video. `load(video)` loads tracks that are new, `mark(ms)` moves the time
 * marker, and `jump(ms)` is called when the user selects a track. `open(ms)` moves the marker and
 * shows the track at this time, also if it is not among the first ones.
 */
export function lanes(id, signal, jump) {
  const [list, more, shot] = [h("ul.lanes"), h("div"), h("div.shot", { "aria-live": "polite" })];
  const element = h("div", {}, list, more, shot);
  let [tracks, cursor, video, marked, running, again] = [[], undefined, null, 0, false, false];
  let wanted = null;
  // The picture of a person is kept while its best face does not change, and is not loaded again.
  const pictures = new Map();

  async function load(now) {
    video = now;
    if (running) return void (again = true);
    running = true;
    try {
      // People are numbered at the end, so all tracks are loaded again then.
      if (isOver(video)) [tracks, cursor] = [[], undefined];
      await next();
    } catch (problem) {
      if (!signal.aborted) put(more, problemBox(problem, () => load(video)));
    }
    running = false;
    if (again && !signal.aborted) (again = false, load(video));
  }

  /** Loads the tracks after the last one. While the video is read, later tracks follow. */
  async function next() {
    const before = tracks;
    const answer = await get(`/videos/${id}/tracks`, { limit: PAGE, cursor }, signal);
    // At the end of the video, all tracks are loaded again. An earlier request is then outdated.
    if (signal.aborted || before !== tracks) return;
    const known = new Set(tracks.map((track) => track.id));
    tracks.push(...answer.tracks.filter((track) => !known.has(track.id)));
    if (answer.next_cursor) cursor = answer.next_cursor;
    draw();
    const isPossible = answer.next_cursor && tracks.at(-1).start_ms <= wanted;
    showWanted(isPossible);
    if (wanted !== null && isPossible) return next();
    const control = button(`More tracks after ${position(tracks.at(-1)?.end_ms ?? 0)}`, { onclick: () => busy(control, next) });
    put(more, answer.next_cursor && h("p.center", {}, control));
  }

  function draw() {
    const whole = Math.max(video.duration_ms ?? 0, video.read_ms ?? 0, ...tracks.map((track) => track.end_ms), 1);
    element.dataset.whole = whole;
    const people = Map.groupBy(tracks, (track) => track.person ?? 0);
    const numbers = [...people.keys()].sort((a, b) => (a || Infinity) - (b || Infinity));
    if (numbers.length === 0) return put(list, h("li.quiet", {}, isOver(video) ? "Nobody was recognised in this video." : "Nobody was recognised yet."));
    // A lane that has the focus keeps it, because its track has the same id in the new lane.
    const focused = document.activeElement?.dataset?.track;
    put(list, numbers.map((number) => lane(number, people.get(number), whole)));
    if (focused) list.querySelector(`[data-track="${focused}"]`)?.focus();
    mark(marked);
  }

  function lane(number, own, whole) {
    const best = own.flatMap((track) => track.faces).sort((a, b) => (b.quality ?? 0) - (a.quality ?? 0))[0];
    const label = labelOf(number);
    const picture = best && (pictures.get(best.face_id) ?? crop(best.face_id, "", signal));
    if (best) pictures.set(best.face_id, picture);
    const bars = own.map((track) => h("button.span", {
      type: "button", "data-track": track.id, "aria-label": `${label}, ${position(track.start_ms)} to ${position(track.end_ms)}`,
      vars: { from: `${(100 * track.start_ms) / whole}%`, width: `${(100 * (track.end_ms - track.start_ms)) / whole}%` },
      onclick: () => select(track, label),
    }));
    return h("li.lane", {},
      h("div.who", {}, best && h("a", { href: href(`/faces/${best.face_id}`), "aria-label": `Best face of ${label.toLowerCase()}` }, picture), h("span", {}, label), h("span.quiet", {}, plural(own.length, "track"))),
      h("div.track", {}, bars, h("span.now", { "aria-hidden": "true" })));
  }

  /** Shows the track at the wanted time, once. `isPossible`: the next request may return it. */
  function showWanted(isPossible) {
    const found = wanted !== null && tracks.find((track) => track.start_ms <= wanted && wanted <= track.end_ms);
    if (found) describe(found, labelOf(found.person ?? 0));
    if (found || (isOver(video) && !isPossible)) wanted = null;
  }

  function select(track, label) {
    jump(track.start_ms);
    mark(track.start_ms);
    describe(track, label);
  }

  function describe(track, label) {
    const best = track.faces[0];
    put(shot,
      best && h("a", { href: href(`/faces/${best.face_id}`), "aria-label": "The face" }, crop(best.face_id, "", signal)),
      h("p", {}, `${label}: ${position(track.start_ms)} to ${position(track.end_ms)}, ${plural(track.samples, "frame")}`,
        best && h("span.quiet", {}, ` Best face at ${position(best.at_ms)}.`)));
  }

  function mark(ms) {
    marked = ms;
    element.style.setProperty("--now", `${Math.min((100 * ms) / Number(element.dataset.whole ?? 1), 100)}%`);
  }

  function open(ms) {
    wanted = ms > 0 ? ms : null;
    mark(ms);
    if (tracks.length > 0) showWanted(true);
  }

  return { element, load, mark, open };
}

const labelOf = (number) => (number === 0 ? "Not numbered yet" : `Person ${count(number)}`);
