// A new crawl, with the common options. The others are the API's.
import { call, Problem } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { go } from "../router.js";
import { button, field, heading, linkButton, panel, trouble } from "../ui.js";

export function show(page, { signal }) {
  const seeds = h("textarea", { name: "seeds", rows: 3, required: true, spellcheck: "false", autocomplete: "off", placeholder: "https://example.org/" });
  const allow = h("input", { name: "allow", spellcheck: "false", autocomplete: "off", placeholder: "example.org, *.example.net" });
  const allowField = field("Hosts", allow, "Separated by commas; a leading *. covers subdomains.");
  const scope = choice("scope", [["host", "The same host"], ["domain", "The same domain"], ["prefix", "Addresses that begin like the seed"], ["list", "The hosts that I name"]]);
  const place = h("div");
  const form = h("form.form", { onsubmit: submit },
    panel("Where",
      field("Seeds", seeds, "Pages or images to begin with, one address per line."),
      field("Scope", scope), allowField),
    panel("How much",
      h("div.columns", {},
        field("Links from a seed", number("max_depth", 3, 0, 100)),
        field("Pages at most", number("max_pages", 1000, 1, 10_000_000)),
        field("Images at most", number("max_images", 5000, 0, 100_000_000)))),
    panel("How",
      h("div.columns", {},
        field("Duplicates", choice("dedupe", [["near", "Also near ones"], ["exact", "Same file only"], ["off", "Process all"]])),
        field("Sitemaps", choice("sitemaps", [["robots", "Those robots.txt names"], ["always", "Always look"], ["off", "None"]])),
        field("Delay per host, ms", h("input", { type: "number", name: "delay_ms", min: 0, max: 300_000, placeholder: "by itself" })),
        field("Repeat every", h("input", { name: "every", pattern: "[0-9]+[mhdw]", placeholder: "never", autocomplete: "off" }), "Such as 12h, 1d or 2w.")),
      h("label.check", {}, h("input", { type: "checkbox", name: "respect_robots", checked: true }), "Obey robots.txt and what pages say of robots")),
    place,
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Start the crawl"), linkButton("Back", "#/crawls")),
    h("p.hint", {}, "Crawl only what you may lawfully process. Faces are personal data."));
  scope.addEventListener("change", () => (allowField.hidden = scope.value !== "list"));
  allowField.hidden = true;
  page.append(heading("New crawl"), form);

  async function submit(event) {
    event.preventDefault();
    const control = event.submitter ?? form.querySelector("[type=submit]");
    control.disabled = true;
    put(place);
    clearMarks(form);
    try {
      const crawl = await call("POST", "/crawls", { json: body(new FormData(form)), signal });
      go(`/crawls/${crawl.id}`);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      put(place, trouble(problem));
      if (problem instanceof Problem) mark(form, problem.field);
    } finally {
      control.disabled = false;
    }
  }
}

const choice = (name, values) => h("select", { name }, values.map(([value, text]) => h("option", { value }, text)));
const number = (name, value, min, max) => h("input", { type: "number", name, value, min, max, required: true });

function body(data) {
  const list = (name, separator) => data.get(name).split(separator).map((text) => text.trim()).filter(Boolean);
  const optional = (name, read = String) => (data.get(name) ? read(data.get(name)) : null);
  return {
    seeds: list("seeds", /\s+/),
    collection: collections.current(),
    scope: data.get("scope"),
    allow: data.get("scope") === "list" ? list("allow", ",") : [],
    max_depth: Number(data.get("max_depth")),
    max_pages: Number(data.get("max_pages")),
    max_images: Number(data.get("max_images")),
    delay_ms: optional("delay_ms", Number),
    respect_robots: data.get("respect_robots") === "on",
    dedupe: data.get("dedupe"),
    sitemaps: data.get("sitemaps"),
    every: optional("every"),
  };
}

/** The problem names the field that is wrong (`seeds`, `seeds[2]`, `max_pages`). */
function mark(form, name) {
  const control = form.elements[String(name ?? "").split(/[[.]/)[0]];
  if (!control) return;
  control.setAttribute("aria-invalid", "true");
  control.focus();
}

const clearMarks = (form) => form.querySelectorAll("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
