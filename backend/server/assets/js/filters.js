// The filters of a list or a search of faces by place and time.
import { h } from "./dom.js";
import { field } from "./ui.js";

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
  const date = (control) => (control.validity.valid && control.value) || undefined;
  const values = () => ({ site: site.value.trim() || undefined, from: date(from), to: date(to) });
  const any = () => Object.values(values()).some(Boolean);
  const element = h("details.panel", { open: any() },
    h("summary", {}, "Filters"),
    h("div.columns", {},
      field("Site", site, "Host of the page that contains the image. Subdomains are included."),
      field("Stored from", from),
      field("Stored until", to)));
  return {
    element,
    query: values,
    params: () => ({ site: values().site, since: midnight(date(from)), until: midnight(date(to), 1) }),
    any,
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
