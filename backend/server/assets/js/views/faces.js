// Faces: all of a collection, newest first, as far as one scrolls.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { tile } from "../faces.js";
import { percent, plural } from "../format.js";
import { href, note } from "../router.js";
import { button, empty, heading, linkButton, loading, trouble } from "../ui.js";

const PAGE = 60;
/** The list as it was left, for a step back: filters, faces, where to go on, how far it was scrolled. */
let left = null;

export function show(page, { query, signal, returning }) {
  if (query.collection) collections.choose(query.collection);
  const filters = { crawl_id: query.crawl_id, image_id: query.image_id };
  const quality = h("input", { type: "range", id: "min-quality", min: 0, max: 1, step: 0.05, value: query.min_quality ?? 0 });
  const output = h("output", { for: "min-quality" });
  const said = h("p.quiet", { role: "status" });
  const grid = h("div.grid");
  const end = h("div.end");
  const params = () => ({ collection: collections.current(), ...filters, min_quality: Number(quality.value) || undefined });
  page.append(
    heading("Faces", linkButton("Search by picture", "#/search", { symbol: "search" })),
    h("div.toolbar", {},
      h("div.slider", {}, h("label", { for: "min-quality" }, "Least quality"), quality, output),
      filters.crawl_id && linkButton("Only of one crawl", href("/faces"), { symbol: "close", "aria-label": "Only of one crawl. Show all" }),
      filters.image_id && linkButton("Only of one image", href("/faces"), { symbol: "close", "aria-label": "Only of one image. Show all" }),
      h("span.grow"), said),
    grid, end);

  let list = { key: "", faces: [], cursor: null };
  let turn = 0;
  const tell = () => put(said, `${plural(list.faces.length, "face")}${list.cursor ? " so far" : ""}`);
  const append = (faces) => grid.append(...faces.map((face) => tile(face, signal)));

  async function more() {
    const mine = ++turn;
    const first = list.faces.length === 0;
    put(end, loading());
    try {
      const answer = await get("/faces", { ...params(), limit: PAGE, cursor: list.cursor }, signal);
      if (mine !== turn) return;
      [list.faces, list.cursor] = [[...list.faces, ...answer.faces], answer.next_cursor];
      append(answer.faces);
      tell();
      close(first && answer.faces.length === 0);
    } catch (problem) {
      if (mine === turn && problem.name !== "AbortError") put(end, trouble(problem, more));
    }
  }
  /** What stands below the grid: nothing more, or a place that loads more when it comes near. */
  function close(none) {
    if (none) {
      const filtered = Number(quality.value) > 0 || filters.crawl_id || filters.image_id;
      return put(end, filtered ? empty("faces", "No face passes these filters.") : empty("faces", "No faces are stored yet.", linkButton("Start a crawl", "#/crawls/new", { kind: "primary", symbol: "plus" })));
    }
    if (!list.cursor) return put(end);
    const next = button("More faces", { onclick: more });
    put(end, h("p.center", {}, next));
    const watcher = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      more();
    }, { rootMargin: "600px" });
    watcher.observe(next);
    signal.addEventListener("abort", () => watcher.disconnect(), { once: true });
  }
  function begin() {
    list = { key: JSON.stringify(params()), faces: [], cursor: null };
    put(grid);
    put(said);
    more();
  }
  const label = () => (output.value = Number(quality.value) > 0 ? percent(Number(quality.value)) : "any");
  quality.addEventListener("input", label);
  quality.addEventListener("change", () => {
    note({ ...filters, min_quality: Number(quality.value) || undefined });
    begin();
  });
  label();

  if (returning && left?.list.key === JSON.stringify(params())) {
    list = left.list;
    append(list.faces);
    tell();
    close(list.faces.length === 0);
    scrollTo(0, left.scroll);
  } else begin();
  // The view is gone when the signal says so, and with it how far it was scrolled.
  const remember = () => (left = { list, scroll: scrollY });
  grid.addEventListener("click", remember);
  signal.addEventListener("abort", () => left?.list !== list && (left = null));
}
