// One collection: its settings, and the end of it.
import { call, get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { form } from "../form.js";
import { time } from "../format.js";
import { go, href, refresh } from "../router.js";
import { may } from "../session.js";
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
    const changed = await call("PATCH", `/collections/${one.id}`, { json: { name: data.get("name"), ...chosen(data) }, signal });
    if (used) collections.choose(changed.name);
    await collections.load();
    toast("The collection is changed.");
    if (changed.name === one.name) refresh();
    else go(`/collections/${changed.name}`);
  };
  const use = button("Use", { kind: "primary", symbol: "check", onclick: () => (collections.choose(one.name), refresh()) });
  return [
    heading(one.name, used ? chip("In use", "ok") : use),
    h("div.actions", {}, CONTENT.filter(([, , , scope]) => may(scope)).map(([label, path, symbol]) => linkButton(label, href(path, { collection: one.name }), { symbol }))),
    may("admin")
      ? form(save,
        panel("Settings", nameField(one.name, { readonly: isDefault }), settings(one)),
        h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Save"), linkButton("Back", "#/collections")))
      : panel("Settings", h("p.hint", {}, "Changing them needs a key with the scope admin.")),
    h("div.form", {},
      panel("", facts([["Id", h("code", {}, one.id)], ["Made", time(one.created_at)]])),
      may("admin") && panel(isDefault ? "Empty" : "Delete",
        h("p", {}, isDefault
          ? "Everything in it is erased for good: crawls, images, faces, people, suppressions. The collection stays, with its settings and keys."
          : "Everything in it is erased for good: crawls, images, faces, people, suppressions and keys. Its name is free at once."),
        h("div.actions", {}, ending(one, isDefault)))),
  ];
}

function ending(one, isDefault) {
  const word = isDefault ? "Empty" : "Delete";
  const control = button(`${word} this collection`, { kind: "danger", symbol: "trash", onclick: () => busy(control, async () => {
    const sure = await confirm(`${word} ${one.name}?`, "It is out of reach at once. Its crawls are cancelled, and a worker erases its rows and pictures piece by piece; the audit log says when nothing is left.",
      `${word} for good`, { typed: one.name });
    if (!sure) return;
    await call("DELETE", `/collections/${one.id}`);
    toast(isDefault ? "The collection is being emptied." : "The collection is being erased.");
    await collections.load();
    go("/collections");
  }) });
  return control;
}
