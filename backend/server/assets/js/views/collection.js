// The view of one collection: its settings and its deletion.
import { call, get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { form } from "../form.js";
import { plural, time } from "../format.js";
import { go, href, refresh } from "../router.js";
import { may, ownKey } from "../session.js";
import { chosen, settings } from "../settings.js";
import { busy, button, chip, confirm, facts, fillWith, heading, linkButton, panel, toast } from "../ui.js";
import { nameField } from "./new_collection.js";

const CONTENT = [["Crawls", "/crawls", "crawls", "read"], ["Faces", "/faces", "faces", "read"], ["People", "/people", "people", "read"],
  ["Erasures", "/erasures", "erasures", "erase"], ["Audit log", "/audit", "audit", "admin"]];

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, () => get(`/collections/${encodeURIComponent(id)}`, {}, signal), (one) => draw(one, signal));
}

function draw(one, signal) {
  const used = one.name === collections.current();
  const isDefault = one.name === "default";
  const save = async (data) => {
    const json = { name: data.get("name"), ...chosen(data) };
    const send = (query) => call("PATCH", `/collections/${one.id}`, { query, json, signal });
    // The service requires confirmation if a shorter retention would delete many images.
    const changed = await send().catch(async (problem) => {
      if (problem.code !== "confirmation_needed") throw problem;
      const preview = await send({ dry_run: true });
      const sure = await confirm("Erase older images?", `${plural(preview.images, "image")} with ${plural(preview.faces, "face")} are older and will be permanently erased.`, "Erase and save");
      return sure && send({ confirm: preview.confirm });
    });
    if (!changed) return;
    if (used) collections.choose(changed.name);
    await collections.load();
    toast("The collection was changed.");
    if (changed.name === one.name) refresh();
    else go(`/collections/${changed.name}`);
  };
  const use = button("Use", { kind: "primary", symbol: "check", onclick: () => (collections.choose(one.name), refresh()) });
  return [
    heading(one.name, used ? chip("In use", "ok") : use),
    h("div.actions", {}, CONTENT.filter(([, , , scope]) => may(scope)).map(([label, path, symbol]) => linkButton(label, href(path, { collection: one.name }), { symbol }))),
    may("admin")
      ? form(save,
        panel("Settings", nameField(one.name, { readonly: isDefault || Boolean(ownKey()?.collection) }), settings(one)),
        h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Save"), linkButton("Back", "#/collections")))
      : panel("Settings", h("p.hint", {}, "To change the settings, use a key with the scope admin.")),
    h("div.form", {},
      panel("", facts([["Id", h("code", {}, one.id)], ["Created", time(one.created_at)]])),
      may("admin") && panel(isDefault ? "Empty" : "Delete",
        h("p", {}, isDefault
          ? "This permanently erases everything in it: crawls, images, faces, people and suppressions. The collection, its settings and its keys are kept."
          : "This permanently erases everything in it: crawls, images, faces, people, suppressions and keys. Its name can be reused immediately."),
        h("div.actions", {}, ending(one, isDefault)))),
  ];
}

function ending(one, isDefault) {
  const word = isDefault ? "Empty" : "Delete";
  const control = button(`${word} this collection`, { kind: "danger", symbol: "trash", onclick: () => busy(control, async () => {
    const preview = await call("DELETE", `/collections/${one.id}`, { query: { dry_run: true } });
    const what = `This erases ${plural(preview.images, "image")} with ${plural(preview.faces, "face")} and ${plural(preview.subjects, "person or cluster", "people and clusters")}.`;
    const sure = await confirm(`${word} ${one.name}?`, `${what} They become inaccessible immediately. Crawls are cancelled. A worker erases the rows and image files in batches, and the audit log contains an entry when this is complete.`,
      `${word} permanently`, { typed: one.name });
    if (!sure) return;
    await call("DELETE", `/collections/${one.id}`, { query: { confirm: preview.confirm } });
    toast(isDefault ? "The collection is being emptied." : "The collection is being erased.");
    await collections.load();
    go("/collections");
  }) });
  return control;
}
