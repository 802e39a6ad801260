// The filters of a list or a search of faces by place and time.
import { h } from "./dom.js";
import { field } from "./ui.js";

/** The names of the filters in the address of a view. */
const NAMES = ["site", "from", "to"];

/**
 * Returns the fields of the filters: `element`, `query()` for the address of the view, and
 * `params()` for a request. `any()` tells whether a filter is set. `query` gives the first values.
 * `onchange` is called after a change.
 */
export function faceFilters(query, onchange) {
  // While the user types a year, the date may have a year such as 0002. The bounds make such a date
  // invalid, and `values` omits it.
  const day = { type: "date", min: "1970-01-01", max: "9998-12-31" };
  const input = (name, props) => h("input", { name, value: query[name] ?? "", onchange, ...props });
  const site = input("site", { type: "text", inputmode: "url", maxlength: 253, placeholder: "example.org", autocomplete: "off", spellcheck: "false" });
  const from = input("from", day);
  const to = input("to", day);
  const values = () => [site.value.trim(), ...[from, to].map((field) => (field.validity.valid ? field.value : ""))];
  const element = h("details.panel", { open: NAMES.some((name) => query[name]) },
    h("summary", {}, "Filters"),
    h("div.columns", {},
      field("Site", site, "Host of the page that contains the image. Subdomains are included."),
      field("Stored from", from),
      field("Stored until", to)));
  return {
    element,
    query: () => Object.fromEntries(NAMES.map((name, index) => [name, values()[index] || undefined])),
    params: () => ({ site: values()[0] || undefined, since: midnight(values()[1]), until: midnight(values()[2], 1) }),
    any: () => values().some(Boolean),
  };
}

/**
 * Returns the local midnight at the start of the day that is `after` days after `day`, or undefined
 * without a day.
 */
function midnight(day, after = 0) {
  if (!day) return undefined;
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + after).toISOString();
}
