// The list of crawls, newest first.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { IMAGES, done, isOver, name, outcomes, stateChip } from "../crawls.js";
import { h } from "../dom.js";
import { ago, count } from "../format.js";
import { href, setQuery } from "../router.js";
import { button, busy, chip, empty, fillWith, heading, linkButton } from "../ui.js";

const STATES = ["", "running", "paused", "completed", "cancelled", "failed"];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const filter = h("select", { "aria-label": "State", value: query.state ?? "" },
    STATES.map((state) => h("option", { value: state, selected: state === (query.state ?? "") }, state || "All states")));
  const list = h("div");
  const params = (cursor) => ({ collection: collections.current(), state: filter.value, cursor });
  filter.addEventListener("change", () => (setQuery({ state: filter.value }), start()));
  page.append(heading("Crawls", filter, linkButton("New crawl", "#/crawls/new", { kind: "primary", symbol: "plus" })), list);

  let earlier = new AbortController();
  start();
  async function start() {
    // The answer for an earlier filter may still arrive. It must not be shown, nor followed.
    earlier.abort();
    earlier = new AbortController();
    const wanted = AbortSignal.any([signal, earlier.signal]);
    await fillWith(list, wanted, () => get("/crawls", params(), wanted), (answer) => draw(answer, wanted));
  }
  function draw(answer, wanted) {
    if (answer.crawls.length === 0) {
      return filter.value
        ? empty("crawls", `There are no ${filter.value} crawls.`)
        : empty("crawls", "A crawl reads a site, finds its images, and stores the faces in them.", linkButton("Start the first crawl", "#/crawls/new", { kind: "primary", symbol: "plus" }));
    }
    const rows = h("ul.crawls", {}, answer.crawls.map(row));
    watch(answer.crawls, rows, wanted);
    return [rows, more(answer.next_cursor, rows)];
  }
  function more(cursor, rows) {
    if (!cursor) return null;
    const control = button("Older crawls", { onclick: () => busy(control, async () => {
      const answer = await get("/crawls", params(cursor), signal);
      rows.append(...answer.crawls.map(row));
      control.replaceWith(...[more(answer.next_cursor, rows)].filter(Boolean));
    }) });
    return h("p.center", {}, control);
  }
  /** Reloads the first page periodically while one of its crawls runs. */
  function watch(crawls, rows, wanted) {
    if (crawls.every((crawl) => isOver(crawl))) return;
    setTimeout(async () => {
      // After a change of the filter, the new list has a timer of its own.
      const answer = wanted.aborted ? null : await get("/crawls", params(), wanted).catch(() => null);
      if (wanted.aborted) return;
      // Only changed rows are replaced, so that an unchanged row keeps the focus.
      for (const [index, crawl] of (answer?.crawls ?? []).entries()) {
        const old = rows.querySelector(`[data-id="${crawl.id}"]`);
        const text = JSON.stringify(crawl);
        if (!old) rows.insertBefore(row(crawl), rows.children[index] ?? null);
        else if (old.dataset.text !== text) replace(old, row(crawl));
      }
      watch(answer?.crawls ?? crawls, rows, wanted);
    }, 2000);
  }
}

function replace(old, fresh) {
  const focused = old.contains(document.activeElement);
  old.replaceWith(fresh);
  if (focused) fresh.querySelector("a").focus();
}

function row(crawl) {
  const { counts } = crawl;
  const images = outcomes(IMAGES, false);
  images.draw(counts.images);
  const progress = done(counts.images);
  const pages = done(counts.pages);
  const item = h("li.crawl", { "data-id": crawl.id },
    h("div.crawlname", {},
      h("a.strong", { href: href(`/crawls/${crawl.id}`) }, name(crawl)),
      h("span.quiet", {}, `${ago(crawl.created_at)}${crawl.next_run_at ? `, next ${ago(crawl.next_run_at)}` : ""}`)),
    h("div.crawlstate", {}, stateChip(crawl.state), crawl.kind === "scan" && chip("Scan"), crawl.series_id && chip("Repeats")),
    h("div.crawlbar", {}, images.element),
    h("dl.numbers", {},
      number("Pages", pages), number("Images", progress), h("div", {}, h("dt", {}, "Faces"), h("dd", {}, count(counts.faces)))));
  item.dataset.text = JSON.stringify(crawl);
  return item;
}

const number = (label, { done: settled, all }) =>
  h("div", {}, h("dt", {}, label), h("dd", {}, settled === all ? count(all) : [count(settled), h("span.quiet", {}, ` / ${count(all)}`)]));
