// The view of one video: its state, and a lane for each person.
import { get } from "../api.js";
import { h, put } from "../dom.js";
import { follow } from "../events.js";
import { exports } from "../exports.js";
import { externalLink } from "../faces.js";
import { bytes, count, time } from "../format.js";
import { outcome } from "../labels.js";
import { lanes } from "../lanes.js";
import { player } from "../player.js";
import { go, href } from "../router.js";
import { may } from "../session.js";
import { busy, button, facts, failed, fillWith, heading, panel } from "../ui.js";
import { cancel, changeState, isOver, name, progress, remove, stateChip } from "../videos.js";
import { eraseLink } from "./face.js";

export function show(page, { params: { id }, query, signal }) {
  fillWith(page, signal, () => get(`/videos/${id}`, {}, signal), (video) => draw(video, Number(query.at) || 0, signal));
}

function draw(first, at, signal) {
  const { id } = first;
  const [top, actions, numbers, about] = [h("div.chips"), h("div.actions"), h("dl.big"), h("div")];
  const film = player(signal, (ms) => people.mark(ms));
  const people = lanes(id, signal, (ms) => film.seek(ms));
  let last = null;

  const update = (video) => {
    put(top, stateChip(video.state), video.reason && h("span", {}, [outcome(video.reason), video.detail].filter(Boolean).join(": ")));
    if (last?.state !== video.state) put(actions, controls(video, (changed) => (update(changed), listen())));
    put(numbers, [["Read", progress(video)], ["Frames", count(video.frames)], ["People", video.people === null ? "–" : count(video.people)]]
      .map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
    if (!last || last.read_ms !== video.read_ms || last.state !== video.state) people.load(video);
    put(about, details(video));
    last = video;
  };

  // The stream begins with the current state. It is opened again after the user changes the video.
  let stream = new AbortController();
  const listen = () => {
    stream.abort();
    stream = new AbortController();
    follow(`/videos/${id}/events`, AbortSignal.any([signal, stream.signal]), (event, video) => (update(video), event !== "done"))
      .catch(failed);
  };

  update(first);
  people.open(at);
  film.seek(at);
  if (!isOver(first)) listen();
  return [heading(name(first), actions), top, numbers, panel("People", film.element, people.element), h("div.pair", {}, panel("Export", exports(`/videos/${id}/export`, `video-${id}`, "The video with its sources, and its tracks, one per line.")), panel("About", about))];
}

function controls(video, update) {
  const step = (label, symbol, act, kind) => {
    const control = button(label, { symbol, kind, onclick: () => busy(control, async () => {
      const changed = await act();
      if (changed) update(changed);
    }) });
    return control;
  };
  const over = isOver(video);
  return [
    ["queued", "running"].includes(video.state) && step("Pause", "pause", () => changeState(video.id, "pause")),
    video.state === "paused" && step("Resume", "play", () => changeState(video.id, "resume"), "primary"),
    video.retryable && may("write") && step("Retry", "refresh", () => changeState(video.id, "retry"), "primary"),
    !over && step("Cancel", "stop", () => cancel(video)),
    over && step("Delete", "trash", async () => {
      if (await remove(video)) go("/videos");
    }, "danger"),
    eraseLink({ video_id: video.id, collection: video.collection }),
  ];
}

function details(video) {
  return facts([
    ["Id", h("code", {}, video.id)],
    ["Added", time(video.created_at)],
    video.finished_at && ["Ended", time(video.finished_at)],
    video.source_url && ["Address", externalLink(video.source_url)],
    video.page_url && ["Found on", externalLink(video.page_url)],
    video.crawl_id && ["Crawl", h("a", { href: href(`/crawls/${video.crawl_id}`) }, "The crawl that found it")],
    video.original_id && ["Same file", h("a", { href: href(`/videos/${video.original_id}`) }, "The video with its faces")],
    ["Collection", h("a", { href: href("/videos", { collection: video.collection }) }, video.collection)],
    video.bytes !== null && ["Size", bytes(video.bytes)],
    video.codec && ["Codec", video.codec],
    video.width && ["Picture", `${video.width} × ${video.height}`],
    ["Frames analysed", `${video.options.sampling ?? "auto"}${video.options.refine ? ", more frames where faces are visible" : ""}`],
    video.unidentified_tracks > 0 && ["Tracks without a face that can be recognised", count(video.unidentified_tracks)],
  ]);
}
