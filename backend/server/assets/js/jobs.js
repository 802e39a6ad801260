// Jobs of the queue: those that were given up, with a second chance.
import { call, get } from "./api.js";
import { h, put } from "./dom.js";
import { shortUrl, time, title } from "./format.js";
import { href, note } from "./router.js";
import { busy, button, chip, empty, fillWith, toast } from "./ui.js";

const STATES = ["discarded", "running", "available", "retryable", "completed", "cancelled", "any"];
const TONES = { discarded: "bad", running: "busy", retryable: "warn", completed: "ok" };

export function jobs(query, signal) {
  const state = h("select", { "aria-label": "State of the jobs" }, STATES.map((name) => h("option", { value: name, selected: name === (query.jobs ?? "discarded") }, title(name))));
  const list = h("div");
  const params = (cursor) => ({ state: state.value, crawl_id: query.crawl_id, limit: 25, cursor });
  const load = () => fillWith(list, signal, () => get("/jobs", params(), signal), draw);
  state.addEventListener("change", () => (note({ jobs: state.value, crawl_id: query.crawl_id }), load()));
  const reload = button("Refresh", { symbol: "refresh", onclick: load });
  load();
  return [h("div.toolbar", {}, state, query.crawl_id && chip("Of one crawl"), reload), list];

  function draw(answer) {
    if (answer.jobs.length === 0) return empty("check", state.value === "discarded" ? "No job was given up." : "There is no such job.");
    const body = h("tbody", {}, answer.jobs.map(row));
    return [
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Jobs" }, h("table.wide", {},
        h("thead", {}, h("tr", {}, ["Job", "State", "Runs", "Last failure", "Ended", ""].map((name) => h("th", { scope: "col" }, name || h("span.hidden", {}, "Actions"))))), body)),
      more(answer.next_cursor, body),
    ];
  }
  function more(cursor, body) {
    if (!cursor) return null;
    const control = button("Older jobs", { onclick: () => busy(control, async () => {
      const answer = await get("/jobs", params(cursor), signal);
      body.append(...answer.jobs.map(row));
      control.replaceWith(...[more(answer.next_cursor, body)].filter(Boolean));
    }) });
    return control;
  }
}

function row(job) {
  const line = h("tr", {},
    h("th", { scope: "row" }, title(job.kind), what(job), job.crawl_id && h("a.quiet", { href: href(`/crawls/${job.crawl_id}`) }, "Its crawl")),
    h("td", {}, chip(title(job.state), TONES[job.state] ?? "")),
    h("td.number", {}, `${job.attempt} of ${job.max_attempts}`),
    h("td", {}, job.last_error ?? ""),
    h("td.number", {}, time(job.finished_at)),
    h("td", {}, job.state === "discarded" && retry(job, () => line)));
  return line;
}

const what = ({ payload }) => {
  const url = payload?.url ?? payload?.image_url ?? payload?.page_url;
  return url && h("code", { title: url }, shortUrl(url, 44));
};

function retry(job, line) {
  const control = button("Retry", { symbol: "refresh", onclick: () => busy(control, async () => {
    const changed = await call("POST", `/jobs/${job.id}/retry`);
    toast("The job is queued again.");
    if (changed) line().replaceWith(row(changed));
  }) });
  return control;
}
