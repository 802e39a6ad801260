// A form that creates a key. The new key has at most the rights of the key that creates it and is
// shown once.
import { call } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { choice, form } from "../form.js";
import { scopeMeaning, scopes } from "../labels.js";
import { go } from "../router.js";
import { may, ownKey } from "../session.js";
import { button, field, heading, linkButton, modal, panel } from "../ui.js";

const DAY = 86_400_000;
const ENDS = [["90", "In 90 days"], ["30", "In 30 days"], ["7", "In a week"], ["365", "In a year"], ["", "Never"]];

export function show(page, { signal }) {
  const own = ownKey();
  const places = collections.collections().map(({ name }) => [name, name]);
  const where = choice("collection", own?.collection ? places : [...places, ["", "All collections"]], collections.current());
  const boxes = scopes().map((scope) => h("input", { type: "checkbox", name: "scopes", value: scope, id: `scope-${scope}` }));
  // A key for one collection has no rights for the whole service. A new key can have only scopes of
  // the key that creates it.
  const allow = () => boxes.forEach((box) => {
    box.disabled = !may(box.value) || (box.value === "system" && where.value !== "");
    if (box.disabled) box.checked = false;
  });
  where.addEventListener("change", allow);
  allow();
  const send = async (data) => {
    const { secret, key } = await call("POST", "/keys", { json: body(data, own), signal });
    await reveal(secret, key);
    go("/keys");
  };
  page.append(heading("New key"), form(send,
    panel("",
      field("Holder", h("input", { name: "name", required: true, maxlength: 200, autocomplete: "off", placeholder: "press desk" })),
      h("div.columns", {},
        field("Collection", where, "The key can access only this collection."),
        field("Expires", choice("days", ENDS.filter(([days]) => within(days, own)), "90")),
        field("Requests per minute", h("input", { type: "number", inputmode: "numeric", name: "requests_per_minute", min: 1, placeholder: "no limit" })))),
    h("fieldset.panel", {}, h("legend.h2", {}, "Scopes"),
      h("div.scopes", {}, boxes.map((box) => h("label.scope", { for: box.id }, box, h("span", {}, h("code.strong", {}, box.value), h("span.quiet", {}, scopeMeaning(box.value)))))),
      own && h("p.hint", {}, "The new key can have only scopes that you have.")),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Create key"), linkButton("Back", "#/keys"))));
}

/**
 * Returns whether a lifetime ends before that of the current key. A new key expires no later than
 * the key that creates it.
 */
const within = (days, own) => !own?.expires_at || (days !== "" && Date.now() + days * DAY <= new Date(own.expires_at).getTime());

function body(data, own) {
  const days = data.get("days");
  return {
    name: data.get("name"),
    collection: data.get("collection") || null,
    scopes: data.getAll("scopes"),
    requests_per_minute: data.get("requests_per_minute") ? Number(data.get("requests_per_minute")) : null,
    // If every lifetime in the list would end after that of the current key, both keys expire at
    // the same time.
    expires_at: days ? new Date(Date.now() + days * DAY).toISOString() : (own?.expires_at ?? null),
  };
}

/**
 * Shows the new key once. Escape does not close the window, so that the key is not lost by
 * accident.
 */
const reveal = (secret, key) => modal(`The key of “${key.name}”`, (close) => {
  const shown = h("input.secret", { value: secret, readonly: true, "aria-label": "The key", autofocus: true, onfocus: () => shown.select() });
  const status = h("p.hint", { role: "status" });
  const copy = button("Copy", { kind: "primary", symbol: "copy", onclick: async () => {
    shown.select();
    // Without TLS, browsers block the clipboard. In that case, the text of the key is selected so
    // that the user can copy it.
    const copied = await navigator.clipboard?.writeText(secret).then(() => true, () => false);
    status.textContent = copied ? "The key was copied to the clipboard." : "The key is selected. Copy it with the keyboard.";
  } });
  return h("div", {},
    h("p", {}, "Copy the key now. It cannot be shown again, because the service stores only its hash."),
    h("div.line", {}, h("div.field", {}, shown), copy), status,
    h("div.actions.end", {}, button("Done", { onclick: () => close(true) })));
}, { firm: true });
