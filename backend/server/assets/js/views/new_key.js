// A new key. It may do no more than the key that makes it, and is shown once.
import { call } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { choice, form } from "../form.js";
import { go } from "../router.js";
import { may, ownKey } from "../session.js";
import { button, field, heading, linkButton, modal, panel } from "../ui.js";
import { scopeMeaning, scopes } from "../words.js";

const DAY = 86_400_000;
const ENDS = [["90", "In 90 days"], ["30", "In 30 days"], ["7", "In a week"], ["365", "In a year"], ["", "Never"]];

export function show(page, { signal }) {
  const own = ownKey();
  const places = collections.collections().map(({ name }) => [name, name]);
  const where = choice("collection", own?.collection ? places : [...places, ["", "All collections"]], collections.current());
  const boxes = scopes().map((scope) => h("input", { type: "checkbox", name: "scopes", value: scope, id: `scope-${scope}` }));
  // A tenant has no part in the whole service, and nobody hands out what he does not have.
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
      field("Who holds it", h("input", { name: "name", required: true, maxlength: 200, autocomplete: "off", placeholder: "press desk" })),
      h("div.columns", {},
        field("Collection", where, "The key sees nothing else."),
        field("Stops working", choice("days", ENDS.filter(([days]) => within(days, own)), "90")),
        field("Requests a minute", h("input", { type: "number", inputmode: "numeric", name: "requests_per_minute", min: 1, placeholder: "no limit" })))),
    h("fieldset.panel", {}, h("legend.h2", {}, "May"),
      h("div.scopes", {}, boxes.map((box) => h("label.scope", { for: box.id }, box, h("span", {}, h("code.strong", {}, box.value), h("span.quiet", {}, scopeMeaning(box.value)))))),
      own && h("p.hint", {}, "A key can be given what yours has, and nothing more.")),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Make the key"), linkButton("Back", "#/keys"))));
}

/** No key outlives the one that makes it. */
const within = (days, own) => !own?.expires_at || (days !== "" && Date.now() + days * DAY <= new Date(own.expires_at).getTime());

function body(data, own) {
  const days = data.get("days");
  return {
    name: data.get("name"),
    collection: data.get("collection") || null,
    scopes: data.getAll("scopes"),
    requests_per_minute: data.get("requests_per_minute") ? Number(data.get("requests_per_minute")) : null,
    // Where every choice would outlive the own key, the new one ends with it.
    expires_at: days ? new Date(Date.now() + days * DAY).toISOString() : (own?.expires_at ?? null),
  };
}

/** The key itself, this once. Leaving it takes a decision: Escape does not lose it. */
const reveal = (secret, key) => modal(`The key of “${key.name}”`, (close) => {
  const shown = h("input.secret", { value: secret, readonly: true, "aria-label": "The key", autofocus: true, onfocus: () => shown.select() });
  const said = h("p.hint", { role: "status" });
  const copy = button("Copy", { kind: "primary", symbol: "copy", onclick: async () => {
    shown.select();
    // Without TLS a browser keeps the clipboard to itself; then the key is marked, to be copied by hand.
    const copied = await navigator.clipboard?.writeText(secret).then(() => true, () => false);
    said.textContent = copied ? "It is in the clipboard." : "It is marked: copy it with your keyboard.";
  } });
  return h("div", {},
    h("p", {}, "Copy it now. It cannot be shown again: the service keeps its hash alone."),
    h("div.line", {}, h("div.field", {}, shown), copy), said,
    h("div.actions.end", {}, button("I have it", { onclick: () => close(true) })));
}, { firm: true });
