// A new crawl, with the common options. The others are the API's.
import { call } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { choice, form } from "../form.js";
import { go } from "../router.js";
import { field, heading, linkButton, panel } from "../ui.js";

export function show(page, { signal }) {
  const seeds = h("textarea", { name: "seeds", rows: 3, required: true, spellcheck: "false", autocomplete: "off", placeholder: "https://example.org/" });
  const allow = h("input", { name: "allow", spellcheck: "false", autocomplete: "off", placeholder: "example.org, *.example.net" });
  const allowField = field("Hosts", allow, "Separated by commas; a leading *. covers subdomains.");
  const scope = choice("scope", [["host", "The same host"], ["domain", "The same domain"], ["prefix", "Addresses that begin like the seed"], ["list", "The hosts that I name"]]);
  const send = async (data) => go(`/crawls/${(await call("POST", "/crawls", { json: body(data), signal })).id}`);
  const element = form(send,
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
        field("Sitemaps", choice("sitemaps", [["robots", "As robots.txt says"], ["always", "Always look"], ["off", "None"]])),
        field("Delay per host, ms", h("input", { type: "number", name: "delay_ms", min: 0, max: 300_000, placeholder: "by itself" })),
        field("Repeat every", h("input", { name: "every", pattern: "[0-9]+[mhdw]", placeholder: "never", autocomplete: "off" }), "Such as 12h, 1d or 2w.")),
      h("label.check", {}, h("input", { type: "checkbox", name: "respect_robots", checked: true }), "Obey robots.txt and what pages say of robots")),
    h("p.hint", {}, "Crawl only what you may lawfully process. Faces are personal data."),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Start the crawl"), linkButton("Back", "#/crawls")));
  scope.addEventListener("change", () => (allowField.hidden = scope.value !== "list"));
  allowField.hidden = true;
  page.append(heading("New crawl"), element);
}

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
