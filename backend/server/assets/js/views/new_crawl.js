// A form that creates a crawl, with the common options. The API has further options.
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
  const scope = choice("scope", [["host", "Same host"], ["domain", "Same domain"], ["prefix", "URLs in or below the directory of a seed"], ["list", "Listed hosts"]]);
  const videos = h("input", { type: "checkbox", name: "videos" });
  const videoField = field("Maximum videos", number("max_videos", 100, 1, 10_000));
  const send = async (data) => go(`/crawls/${(await call("POST", "/crawls", { json: body(data), signal })).id}`);
  const element = form(send,
    panel("Start and scope",
      field("Seeds", seeds, "Pages or images at which the crawl starts, one URL per line."),
      field("Scope", scope), allowField),
    panel("Limits",
      h("div.columns", {},
        field("Maximum link depth", number("max_depth", 3, 0, 50)),
        field("Maximum pages", number("max_pages", 1000, 1, 1_000_000)),
        field("Maximum images", number("max_images", 5000, 1, 10_000_000)), videoField)),
    panel("Behaviour",
      h("div.columns", {},
        field("Duplicates", choice("dedupe", [["near", "Skip identical files and near duplicates"], ["exact", "Skip identical files"], ["off", "Process all images"]])),
        field("Rotated images", choice("rotate", [["off", "Search images as they are"], ["auto", "Also find faces that are not upright"]])),
        field("Sitemaps", choice("sitemaps", [["robots", "From robots.txt"], ["always", "Always"], ["off", "None"]])),
        field("Delay per host, ms", h("input", { type: "number", name: "delay_ms", min: 0, max: 300_000, placeholder: "automatic" })),
        field("Repeat every", h("input", { name: "every", pattern: "[0-9]+[mhdw]", placeholder: "never", autocomplete: "off" }), "For example 12h, 1d or 2w.")),
      h("label.check", {}, videos, "Also read videos"),
      h("label.check", {}, h("input", { type: "checkbox", name: "respect_robots", checked: true }), "Obey robots.txt and the robots directives of pages")),
    h("p.hint", {}, "Crawl only what you may lawfully process. Faces are personal data."),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Start the crawl"), linkButton("Back", "#/crawls")));
  scope.addEventListener("change", () => (allowField.hidden = scope.value !== "list"));
  videos.addEventListener("change", () => (videoField.hidden = !videos.checked));
  allowField.hidden = videoField.hidden = true;
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
    videos: data.get("videos") === "on",
    max_videos: Number(data.get("max_videos")),
    delay_ms: optional("delay_ms", Number),
    respect_robots: data.get("respect_robots") === "on",
    dedupe: data.get("dedupe"),
    rotate: data.get("rotate"),
    sitemaps: data.get("sitemaps"),
    every: optional("every"),
  };
}
