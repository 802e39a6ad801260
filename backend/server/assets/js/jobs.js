// Lists the jobs of the queue. Discarded jobs are shown by default, each with a button that retries
// it.
import { call, get } from "./api.js";
import { h } from "./dom.js";
import { shortUrl, time, title } from "./format.js";
import { href, setQuery } from "./router.js";
import { table } from "./table.js";
import { busy, button, chip, empty, fillWith, toast } from "./ui.js";

const STATES = ["discarded", "running", "available", "retryable", "completed", "cancelled", "any"];
const HEADS = ["Job", "State", { name: "Attempts", number: true }, "Last failure", { name: "Ended", number: true }, { name: "Actions", hidden: true }];
const TONES = { discarded: "bad", running: "busy", retryable: "warn", completed: "ok" };

export function jobs(query, signal) {
  const state = h("select", { "aria-label": "State of the jobs" }, STATES.map((name) => h("option", { value: name, selected: name === (query.jobs ?? "discarded") }, title(name))));
  const list = h("div");
  const params = (cursor) => ({ state: state.value, crawl_id: query.crawl_id, limit: 25, cursor });
  const load = () => fillWith(list, signal, () => get("/jobs", params(), signal), draw);
  state.addEventListener("change", () => (setQuery({ jobs: state.value, crawl_id: query.crawl_id }), load()));
  const reload = button("Refresh", { symbol: "refresh", onclick: load });
  load();
  return [h("div.toolbar", {}, state, query.crawl_id && chip("Jobs of one crawl"), reload), list];

  function draw(answer) {
    if (answer.jobs.length === 0) return empty("check", state.value === "discarded" ? "There are no discarded jobs." : "There are no jobs in this state.");
    const rows = table("Jobs", HEADS);
    const cells = (job) => jobCells(job, rows);
    rows.add(answer.jobs.map(cells));
    return [rows.element, more(answer.next_cursor, (jobs) => rows.add(jobs.map(cells)))];
  }
  function more(cursor, add) {
    if (!cursor) return null;
    const control = button("Older jobs", { onclick: () => busy(control, async () => {
      const answer = await get("/jobs", params(cursor), signal);
      add(answer.jobs);
      control.replaceWith(...[more(answer.next_cursor, add)].filter(Boolean));
    }) });
    return control;
  }
}

const jobCells = (job, rows) => [
  h("span.jobname", {}, title(job.kind), what(job), job.crawl_id && h("a.quiet", { href: href(`/crawls/${job.crawl_id}`) }, "Crawl")),
  chip(title(job.state), TONES[job.state] ?? ""),
  `${job.attempt} of ${job.max_attempts}`,
  job.last_error ?? "",
  time(job.finished_at),
  job.state === "discarded" && retry(job, rows),
];

const what = ({ payload }) => {
  const url = payload?.url ?? payload?.image_url ?? payload?.page_url;
  return url && h("code", { title: url }, shortUrl(url, 44));
};

function retry(job, rows) {
  const control = button("Retry", { symbol: "refresh", onclick: () => busy(control, async () => {
    const changed = await call("POST", `/jobs/${job.id}/retry`);
    toast("The job is queued again.");
    if (changed) control.closest("tr").replaceWith(rows.row(jobCells(changed, rows)));
  }) });
  return control;
}
