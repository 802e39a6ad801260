// Links that download an export.
import { key, request, save, url } from "./api.js";
import { h } from "./dom.js";
import { busy, button, linkButton } from "./ui.js";

/**
 * Returns the downloads of the export at `path`, with a sentence about them. Without a key, the
 * downloads are plain links, and the browser streams the response to a file. With a key, links
 * cannot be used, because a link cannot send a key.
 */
export function exports(path, name, sentence) {
  const link = (label, query, extension) => {
    const [address, file] = [url(path, query), `${name}.${extension}`];
    if (!key.get()) return linkButton(label, address, { symbol: "download", download: file });
    const control = button(label, { symbol: "download", onclick: () => busy(control, async () => save(await (await request("GET", address)).blob(), file)) });
    return control;
  };
  return [
    h("p.hint", {}, sentence),
    h("div.actions", {}, link("JSON Lines", { format: "jsonl" }, "jsonl"), link("CSV", { format: "csv" }, "csv"), link("With embeddings", { format: "jsonl", embeddings: true }, "jsonl")),
  ];
}
