// The search view, which finds where else a face appears (1:N).
import { call, get, save } from "../api.js";
import { analyse, facePicker } from "../analysis.js";
import * as collections from "../collections.js";
import { csv } from "../csv.js";
import { h, put, s } from "../dom.js";
import { match } from "../faces.js";
import { faceFilters } from "../filters.js";
import { score } from "../format.js";
import { receive } from "../handoff.js";
import { pictureInput } from "../input.js";
import { badge } from "../people.js";
import { crop } from "../picture.js";
import { href, setQuery } from "../router.js";
import { button, empty, fillWith, heading, linkButton, loading, panel } from "../ui.js";

const MOST = 200;

export function show(page, { query, signal }) {
  const probe = h("div.probe");
  const results = h("div.result", {}, empty("search", "Choose an image or a stored face to find where else the face appears."));
  let last = null;
  let running = new AbortController();
  const filters = faceFilters(query, () => {
    setQuery({ face: query.face, ...filters.query() });
    if (last) search(last);
  });
  const search = (body) => {
    last = body;
    running.abort();
    running = new AbortController();
    const own = AbortSignal.any([signal, running.signal]);
    return fillWith(results, own,
      () => call("POST", "/faces/search", { json: { ...body, ...filters.params(), limit: MOST, threshold: 0 }, signal: own }),
      (answer) => matches(answer, filters, signal), loading("Searching…"));
  };

  const take = (blob, name, index = 0) => {
    input.classList.add("compact");
    last = null;
    running.abort();
    return fillWith(probe, signal, () => analyse(blob, name, {}, signal), (found) => {
      if (found.answer.faces.length === 0) {
        put(results, empty("detect", "No face was found in this image."));
        return picture(found, blob, signal, () => {});
      }
      const collection = collections.current();
      return picture(found, blob, signal, (at) => search({ embedding: found.answer.faces[at].embedding, collection }), index);
    }, loading("Detecting faces…"));
  };

  const input = pictureInput((blob, name) => take(blob, name), signal);
  page.append(heading("Search"), h("div.split", {}, h("div.side", {}, input, probe, filters.element), results));
  const handed = receive();
  if (handed) take(handed.blob, handed.name, handed.face);
  else if (query.face) {
    input.classList.add("compact");
    fillWith(probe, signal, () => get(`/faces/${query.face}`, {}, signal), (face) => panel("Query face",
      h("a.probeface", { href: href(`/faces/${face.id}`) }, crop(face.id, "The stored query face", signal)),
      h("p.hint", {}, `A stored face of ${face.collection}. It is excluded from the matches.`)));
    search({ face_id: query.face });
  }
}

function picture(found, blob, signal, onChoose, index = 0) {
  const picker = facePicker(found, blob, signal, onChoose);
  const drawn = panel("Query face", picker.stage, found.answer.faces.length > 1 && h("p.hint", {}, "Select a face."), picker.list);
  if (found.answer.faces.length > 0) picker.choose(Math.min(index, found.answer.faces.length - 1));
  return drawn;
}

/**
 * The search returned all matches with a similarity of 0 or more, so moving the slider needs no
 * further request.
 */
function matches(answer, filters, signal) {
  if (answer.matches.length === 0) {
    if (filters.any()) return empty("faces", `No similar face in ${answer.collection} passes these filters.`);
    return empty("faces", `${answer.collection} contains no similar face.`, linkButton("Start a crawl", "#/crawls/new", { symbol: "plus" }));
  }
  const list = h("ul.matches", { "aria-label": "Matches, by descending similarity" }, answer.matches.map((found) => match(found, signal, badge(found))));
  const status = h("p.strong", { role: "status" });
  const output = h("output", { for: "threshold" });
  const slider = h("input", { type: "range", id: "threshold", min: 0, max: 1, step: 0.01, value: answer.default_threshold.toFixed(2) });
  const filter = () => {
    const threshold = Number(slider.value);
    let shown = 0;
    answer.matches.forEach((found, index) => {
      const keep = found.similarity >= threshold;
      list.children[index].hidden = !keep;
      if (keep) shown++;
    });
    output.value = score(threshold);
    const total = answer.matches.length === MOST ? `the best ${MOST}` : String(answer.matches.length);
    put(status, `${shown} of ${total} ${shown === 1 ? "is" : "are"} at or above ${score(threshold)}`);
    none.hidden = shown > 0;
  };
  const none = h("div", { hidden: true }, empty("search", "No match reaches this threshold. A lower threshold shows more matches, but also more false matches."));
  slider.addEventListener("input", filter);
  const defaults = button(`Default ${score(answer.default_threshold)}`, { onclick: () => ((slider.value = answer.default_threshold.toFixed(2)), filter()) });
  const shown = () => answer.matches.filter(({ similarity }) => similarity >= Number(slider.value));
  const drawn = h("div", {},
    h("div.panel", {},
      h("div.heading", {}, status, h("div.actions", {}, defaults,
        button("CSV", { symbol: "download", onclick: () => save(new Blob([table(shown())], { type: "text/csv" }), "matches.csv") }))),
      h("div.slider", {}, h("label", { for: "threshold" }, "Threshold"), h("div", {}, distribution(answer.matches), slider), output),
      h("p.hint", {}, `Faces of ${answer.collection}, compared by ${answer.model}, ${answer.exact ? "exactly" : "by the approximate index"}. A match does not prove identity.`)),
    list, none);
  filter();
  return drawn;
}

/** Draws a line for each match at its similarity, above the slider. */
function distribution(found) {
  return s("svg", { class: "distribution", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    found.map(({ similarity }) => s("line", { x1: similarity * 100, x2: similarity * 100, y1: 0, y2: 10 })));
}

function table(found) {
  const head = ["face_id", "image_id", "similarity", "page_url", "image_url", "sources_total"];
  return csv([head, ...found.flatMap(({ face_id, image_id, similarity, sources, sources_total }) =>
    (sources.length > 0 ? sources : [{}]).map(({ page_url, image_url }) => [face_id, image_id, similarity, page_url, image_url, sources_total]))]);
}
