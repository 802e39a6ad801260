// The list of API keys and their rights.
import { call, get } from "../api.js";
import { h } from "../dom.js";
import { endless } from "../endless.js";
import { ago, count, plural, time } from "../format.js";
import { scopes } from "../labels.js";
import { href, refresh } from "../router.js";
import { asksForKeys, ownKey } from "../session.js";
import { table } from "../table.js";
import { busy, button, chip, confirm, empty, heading, linkButton, toast } from "../ui.js";

const HEADS = ["Key", "Collection", "Scopes", { name: "Per minute", number: true }, { name: "Last used", number: true }, "State", { name: "Revoke", hidden: true }];

export function show(page, { signal }) {
  const { element, add, row } = table("Keys", HEADS);
  const [list, end] = [h("div.panel", { hidden: true }, element), h("div.end")];
  page.append(
    heading("Keys", asksForKeys() && linkButton("New key", "#/keys/new", { kind: "primary", symbol: "plus" })),
    asksForKeys() ? h("p.lead", {}, "A key has a holder, scopes and a collection. It is shown only once, when it is created.") : open(),
    list, end);
  endless(end, signal, {
    more: "Older keys",
    ask: (cursor) => get("/keys", { cursor }, signal),
    add: ({ keys }) => {
      list.hidden &&= keys.length === 0;
      add(keys.map((key) => cells(key, row)));
      return keys.length;
    },
    none: () => empty("keys", "There are no keys yet."),
  }).begin();
}

/**
 * Without authentication, every caller could create a key that stays valid after authentication is
 * enabled. Therefore this view offers no creation of keys in that case.
 */
const open = () => h("section.panel", {},
  h("h2", {}, "This service requires no key"),
  h("p", {}, "Everyone who can reach the service has full access. To require keys, start the service with ", h("code", {}, "AUTH=keys"), ". Create the first key on the host of the service with the command below; you can then create more keys here. A key can only create keys with its own scopes, so the first key needs all scopes:"),
  h("pre", { tabindex: 0 }, `facecrawl keys create --all --name operator --scope ${scopes().join(",")}`));

function cells(key, row) {
  const expired = key.expires_at !== null && new Date(key.expires_at) <= Date.now();
  const endedAt = key.revoked_at ?? (expired ? key.expires_at : null);
  const isOwn = key.id === ownKey()?.id;
  const state = key.revoked_at ? chip("Revoked", "bad") : expired ? chip("Expired", "warn") : chip("Active", "ok");
  const revoke = asksForKeys() && !endedAt && button("Revoke", { kind: "danger", "aria-label": `Revoke ${key.name}`, onclick: ({ currentTarget: control }) => busy(control, async () => {
    const ended = await end(key, isOwn);
    if (!ended) return;
    // The row shows the new state of the key. If other keys were revoked too, the list is loaded
    // again.
    if (ended.descendants_revoked > 0) await refresh();
    else control.closest("tr").replaceWith(row(cells(ended.key, row)));
  }) });
  return [
    h("span.keyname", {}, h("span.strong", {}, key.name), h("code.quiet", {}, `${key.prefix}…`), isOwn && chip("This tab", "busy")),
    key.collection ? h("a", { href: href(`/collections/${key.collection}`) }, key.collection) : h("span.strong", {}, "All"),
    h("span.chips", {}, key.scopes.map((scope) => chip(scope))),
    key.requests_per_minute === null ? h("span.quiet", {}, "no limit") : count(key.requests_per_minute),
    key.last_used_at ? h("span", { title: time(key.last_used_at) }, ago(key.last_used_at)) : h("span.quiet", {}, "never"),
    h("span.rowtext", {}, state, (endedAt || key.expires_at) && h("span.quiet.small.when", { title: time(endedAt ?? key.expires_at) }, `${endedAt ? "since" : "until"} ${time(endedAt ?? key.expires_at).slice(0, 10)}`)),
    revoke,
  ];
}

async function end(key, isOwn) {
  const makes = key.scopes.includes("keys");
  const sure = await confirm(`Revoke “${key.name}”?`,
    [isOwn ? "This tab uses this key and will then require a different key. " : "", "The key stops working within seconds, permanently.",
      makes && [" The ", h("a", { href: href("/audit", { action: "key.create", key_id: key.id }) }, "audit log"), " lists the keys that were created with it."]],
    "Revoke", { option: makes && "Also revoke all keys that were created with it, directly or indirectly" });
  if (!sure) return undefined;
  const ended = await call("POST", `/keys/${key.id}/revoke`, { query: sure.ticked ? { descendants: true } : {} });
  const [gone, working] = [ended.descendants_revoked, ended.descendants_working];
  toast([`“${key.name}” was revoked`, gone > 0 && `, with ${plural(gone, "key")} created with it`, ".", working > 0 && ` Keys created with it that are still valid: ${count(working)}.`]);
  return ended;
}
