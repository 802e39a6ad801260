// The system view: health, devices, queue and discarded jobs.
import { call, get, request } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, duration, percent, title } from "../format.js";
import { jobs } from "../jobs.js";
import { parse, rate, sum } from "../metrics.js";
import { plot } from "../plot.js";
import { bar } from "../quality.js";
import { table } from "../table.js";
import { chip, facts, fillWith, heading, linkButton, panel, problemBox } from "../ui.js";

const LIVE = ["available", "running", "retryable"];
/**
 * The samples of the plots are kept when the user leaves the view, so that the plots are complete
 * when the user returns.
 */
const history = { jobs: [], depth: [], requests: [], faces: [] };
let before = null;

export function show(page, { query, signal }) {
  const [health, devices, queue] = [h("div"), h("div.stacked"), h("div.stacked")];
  const plots = {
    depth: plot("Jobs waiting", { samples: history.depth }),
    jobs: plot("Jobs completed", { unit: "/s", samples: history.jobs }),
    faces: plot("Faces stored", { unit: "/s", samples: history.faces }),
    requests: plot("API requests", { unit: "/s", samples: history.requests }),
  };
  page.append(
    heading("System", linkButton("API description", "/docs/", { symbol: "book" })),
    health,
    panel("Throughput", h("div.plots", {}, Object.values(plots).map(({ element }) => element)), queue),
    panel("Devices", devices),
    panel("Jobs", jobs(query, signal)));
  fillWith(devices, signal, () => get("/gpu", {}, signal), gpu);

  const update = async () => {
    try {
      const text = await (await request("GET", "/metrics", { signal })).text();
      const samples = parse(text);
      measure(samples, plots);
      put(queue, depths(samples));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      put(queue, problemBox(problem));
      // A repeated request would be rejected too.
      if (problem.status === 403) clearInterval(timer);
    }
    const state = await call("GET", "/health/ready", { signal }).then(() => null, (problem) => problem);
    if (!signal.aborted) put(health, state ? problemBox(state) : ready());
  };
  const timer = setInterval(() => !document.hidden && update(), 2000);
  update();
  signal.addEventListener("abort", () => clearInterval(timer));
}

const ready = () => h("p.ready", {}, chip("Ready", "ok"), " The database responds and the models can run.");

function measure(samples, plots) {
  const now = {
    at: performance.now() / 1000,
    jobs: sum(samples, "facecrawl_jobs_total"),
    faces: sum(samples, "facecrawl_faces_stored_total"),
    requests: sum(samples, "facecrawl_http_requests_total"),
  };
  plots.depth.add(sum(samples, "facecrawl_queue_jobs", { state: ["available", "retryable"] }));
  // After a pause (the user opened another view or hid the tab), the line starts again, because a
  // mean over the pause would be misleading.
  const seconds = before ? now.at - before.at : 0;
  for (const name of ["jobs", "faces", "requests"]) {
    plots[name].add(seconds > 0 && seconds < 10 ? rate(before[name], now[name], seconds) : NaN);
  }
  before = now;
}

const item = (name, value) => h("span", {}, `${name} `, h("b", {}, value));

/** Returns a table of jobs by kind and state. */
function depths(samples) {
  const queueSamples = samples.filter(({ name }) => name === "facecrawl_queue_jobs");
  const kinds = [...new Set(queueSamples.map(({ labels }) => labels.kind))].sort();
  const states = [...LIVE, "discarded"];
  const oldest = sum(samples, "facecrawl_queue_oldest_due_seconds");
  const memory = sum(samples, "process_resident_memory_bytes");
  return [
    h("p.legend", {}, item("Oldest due job waits", duration(oldest)), memory > 0 && item("Memory", bytes(memory)),
      // The request for the metrics itself is not counted.
      item("Requests in flight", count(Math.max(0, sum(samples, "facecrawl_http_requests_in_flight") - 1)))),
    kinds.length === 0
      ? h("p.quiet", {}, "No jobs are waiting or running.")
      : table("Queue", ["Queue", ...states.map((state) => ({ name: title(state), number: true }))],
        kinds.map((kind) => [title(kind), ...states.map((state) => count(sum(queueSamples, "facecrawl_queue_jobs", { kind, state })))])).element,
  ];
}

function gpu(report) {
  const where = (operation) => chip(operation.effective, operation.effective === operation.requested || !operation.gpu_requested ? "ok" : "warn");
  const providers = report.providers.map(({ name, in_build, in_library }) =>
    h("li", {}, chip(name, in_build && in_library ? "ok" : ""), h("span.quiet", {}, in_build && in_library ? "" : in_build ? "not installed" : "not in this program")));
  return [
    report.devices.map(device),
    table("Operations", ["Operation", "Requested", "Runs on", "Reason"],
      report.operations.map((one) => [title(one.operation), one.requested, where(one), one.reason ?? ""])).element,
    table("Models", ["Model", "Device", "Provider", { name: "Sessions", number: true }, { name: "Size", number: true }, { name: "Loaded in", number: true }],
      report.models.map((model) => [model.file, model.device, `${model.provider}, ${model.precision}`, count(model.sessions), bytes(model.bytes), `${model.seconds.toFixed(2)} s`])).element,
    facts([["ONNX Runtime", report.runtime_version]]),
    h("ul.providers", { "aria-label": "Execution providers" }, providers),
  ];
}

const device = (one) => h("div.device", {},
  h("p.strong", {}, `${one.name} (${one.backend}:${one.id})`),
  one.memory_total && (one.memory_used === null
    ? h("p", {}, `Memory ${bytes(one.memory_total)}`)
    : h("p", {}, `Memory ${bytes(one.memory_used)} of ${bytes(one.memory_total)}`, bar(one.memory_used / one.memory_total))),
  one.utilization !== null && h("p", {}, `Utilisation ${percent(one.utilization)}`, bar(one.utilization)),
  one.driver && h("p.quiet", {}, `Driver ${one.driver}`));
