// The view of the audit log: who did what, where and when.
import { get, save } from "../api.js";
import * as collections from "../collections.js";
import { csv } from "../csv.js";
import { h, put } from "../dom.js";
import { endless } from "../endless.js";
import { count, figure, time, title } from "../format.js";
import { action, actions } from "../labels.js";
import { href, setQuery } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { busy, button, empty, field, heading, linkButton, toast } from "../ui.js";

const HEADS = ["When", "What", "Collection", "Who", "Details"];
const MOST_SAVED = 10_000;

export function show(page, { query, signal }) {
  const what = select(query.action, [["", "Everything"], ...actions()]);
  const where = select(query.collection, [["", "All"], ...collections.collections().map(({ name }) => [name, name])]);
  const [since, until] = [query.since, query.until].map((value) => h("input", { type: "date", value: value ?? "" }));
  const [list, end] = [h("div.panel"), h("div.end")];
  const filters = () => ({ action: what.value, collection: where.value, since: since.value, until: until.value, key_id: query.key_id, person: query.person });
  const params = () => ({ ...filters(), since: midnight(since.value, 0), until: midnight(until.value, 1) });
  let names = Promise.resolve(new Map());
  let rows = null;
  const log = endless(end, signal, {
    more: "Older records",
    ask: async (cursor) => {
      const [answer, known] = await Promise.all([get("/audit", { ...params(), limit: 100, cursor }, signal), names]);
      return { ...answer, known };
    },
    add: ({ records: more, known }) => {
      rows.add(more.map((record) => cells(record, known)));
      list.hidden &&= more.length === 0;
      return more.length;
    },
    none: () => empty("audit", "No record matches these filters."),
  });
  const begin = () => {
    rows = table("Records, newest first", HEADS);
    list.hidden = true;
    put(list, rows.element);
    log.begin();
  };
  for (const control of [what, where, since, until]) control.addEventListener("change", () => (setQuery(filters()), begin()));
  const download = button("CSV", { symbol: "download", onclick: () => busy(download, async () => {
    const { records, cut } = await newest(params(), signal);
    save(new Blob([sheet(records)], { type: "text/csv" }), "audit.csv");
    if (cut) toast(`The file contains only the newest ${count(records.length)} records. Filter by day to save older ones.`);
  }) });
  page.append(
    heading("Audit log", download),
    h("div.filters", {}, field("What", what), field("Collection", where), field("From", since), field("To", until),
      query.key_id && linkButton("Records of one key", href("/audit"), { symbol: "close", "aria-label": "Records of one key. Show all" }),
      query.person && linkButton("One person", href("/audit"), { symbol: "close", "aria-label": "One person. Show all" })),
    list, end);
  if (may("keys")) names = get("/keys", { limit: 1000 }, signal).then(({ keys }) => new Map(keys.map(({ id, name }) => [id, name])), () => new Map());
  begin();
}

const select = (value, choices) => h("select", {}, choices.map(([code, text]) => h("option", { value: code, selected: code === (value ?? "") }, text)));

/** Returns the newest records that match the filters, and whether there are more. */
async function newest(params, signal) {
  const records = [];
  let cursor = null;
  do {
    const answer = await get("/audit", { ...params, limit: 1000, cursor }, signal);
    records.push(...answer.records);
    cursor = answer.next_cursor;
  } while (cursor && records.length < MOST_SAVED);
  return { records, cut: cursor !== null };
}

/**
 * Returns the instant at which a day begins in the local time zone of the user. The day is `days`
 * days after `day`.
 */
function midnight(day, days) {
  if (!day) return undefined;
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + days).toISOString();
}

function cells(record, known) {
  return [
    h("span.when", { title: record.at }, time(record.at)),
    h("span", { title: record.action }, action(record.action)),
    record.collection ? h("a", { href: href(`/collections/${record.collection}`) }, record.collection) : h("span.quiet", {}, record.collection_id ? "deleted" : "–"),
    record.person ? h("a.held-by", { href: href("/audit", { person: record.person }) }, record.person)
      : record.key_id ? h("a.held-by", { href: href("/audit", { key_id: record.key_id }), title: record.key_id }, known.get(record.key_id) ?? `${record.key_id.slice(0, 8)}…`) : h("span.quiet", {}, "none"),
    h("span.details", {}, Object.entries(record.detail).filter(([, value]) => value !== null).map(([name, value]) => h("span", {}, h("span.quiet", {}, `${title(name)} `), valueText(value)))),
  ];
}

const valueText = (value) => {
  if (typeof value === "number") return h("b", {}, figure(value));
  if (typeof value === "boolean") return value ? "yes" : "no";
  const text = Array.isArray(value) ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : value;
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(text) ? h("code", { title: text }, `${text.slice(0, 8)}…`) : text;
};

const sheet = (records) => csv([["id", "at", "action", "collection", "key_id", "person", "request_id", "detail"],
  ...records.map((one) => [one.id, one.at, one.action, one.collection ?? one.collection_id, one.key_id, one.person, one.request_id, JSON.stringify(one.detail)])]);
