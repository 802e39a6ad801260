// All faces of a collection, newest first, in a list that loads more while the user scrolls.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { endless } from "../endless.js";
import { tile } from "../faces.js";
import { faceFilters } from "../filters.js";
import { percent, plural } from "../format.js";
import { href, setQuery } from "../router.js";
import { empty, heading, linkButton } from "../ui.js";

const PAGE = 60;
/**
 * The state of the list when the user left it: filters, faces, cursor and scroll position. It is
 * restored when the user goes back in the history.
 */
let left = null;

export function show(page, { query, signal, returning }) {
  if (query.collection) collections.choose(query.collection);
  const filters = { crawl_id: query.crawl_id, image_id: query.image_id };
  const places = faceFilters(query, () => changed());
  const quality = h("input", { type: "range", id: "min-quality", min: 0, max: 1, step: 0.05, value: query.min_quality ?? 0 });
  // Without a switch, the newest faces of crowds would hide the others. The faces of one image are
  // few.
  const all = h("input", { type: "checkbox", id: "all-faces", checked: Boolean(query.all || query.image_id) });
  const output = h("output", { for: "min-quality" });
  const status = h("p.quiet", { role: "status" });
  const grid = h("div.grid");
  const end = h("div.end");
  const params = () => ({ collection: collections.current(), ...filters, ...places.params(), min_quality: Number(quality.value) || undefined, passed: all.checked ? undefined : true });
  page.append(
    heading("Faces", linkButton("Search by image", "#/search", { symbol: "search" })),
    h("div.toolbar", {},
      h("div.slider", {}, h("label", { for: "min-quality" }, "Minimum quality"), quality, output),
      h("label.check", {}, all, "Show all, also faces that fail the quality profile"),
      filters.crawl_id && linkButton("Faces of one crawl", href("/faces"), { symbol: "close", "aria-label": "Faces of one crawl. Show all" }),
      filters.image_id && linkButton("Faces of one image", href("/faces"), { symbol: "close", "aria-label": "Faces of one image. Show all" }),
      h("span.grow"), status),
    places.element, grid, end);

  let list = null;
  const tell = () => put(status, `${plural(list.faces.length, "face")}${list.cursor ? " so far" : ""}`);
  const draw = (faces) => grid.append(...faces.map((face) => tile(face, signal)));
  const rows = endless(end, signal, {
    more: "More faces",
    ask: (cursor) => get("/faces", { ...params(), limit: PAGE, cursor }, signal),
    add: ({ faces, next_cursor }) => {
      list.faces.push(...faces);
      list.cursor = next_cursor;
      draw(faces);
      tell();
      return faces.length;
    },
    none: () => Number(quality.value) > 0 || filters.crawl_id || filters.image_id || places.any()
      ? empty("faces", "No face passes these filters.")
      : empty("faces", all.checked ? "No faces are stored yet." : "No faces that pass the quality profile are stored yet.", linkButton("Start a crawl", "#/crawls/new", { kind: "primary", symbol: "plus" })),
  });
  function begin() {
    list = { key: JSON.stringify(params()), faces: [], cursor: null };
    put(grid);
    put(status);
    rows.begin();
  }
  const label = () => (output.value = Number(quality.value) > 0 ? percent(Number(quality.value)) : "any");
  quality.addEventListener("input", label);
  function changed() {
    setQuery({ ...filters, ...places.query(), min_quality: Number(quality.value) || undefined, all: all.checked && !filters.image_id ? true : undefined });
    begin();
  }
  quality.addEventListener("change", changed);
  all.addEventListener("change", changed);
  label();

  if (returning && left?.list.key === JSON.stringify(params())) {
    list = left.list;
    draw(list.faces);
    tell();
    rows.resume(list.faces.length, list.cursor);
    scrollTo(0, left.scroll);
  } else begin();
  // When the signal aborts, the view and its scroll position are already gone.
  const remember = () => (left = { list, scroll: scrollY });
  grid.addEventListener("click", remember);
  signal.addEventListener("abort", () => left?.list !== list && (left = null));
}
