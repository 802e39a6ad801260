// The address after the `#` is the view: `#/faces/ID?crawl_id=…`. Back, forward, reload and links just work.

let routes = [];
let outlet = null;
let current = null;
let shown = null;

/** Path segments and parameters of the address. */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { segments, query: Object.fromEntries(new URLSearchParams(search)) };
}

/** The address of a view. */
export function href(path, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#${path}${set.length > 0 ? `?${new URLSearchParams(set)}` : ""}`;
}

/** Goes to a view. */
export const go = (path, query) => (location.hash = href(path, query));

/** Notes filters in the address without a step in the history. */
export const note = (query) => history.replaceState(history.state, "", href(`/${parse(location.hash).segments.join("/")}`, query));

/** `table` holds `[pattern, title, load]`: `["faces/:id", "Face", () => import(…)]`. A view's `show(outlet, context)` draws it. */
export function start(table, element, onChange) {
  [routes, outlet] = [table, element];
  addEventListener("hashchange", () => refresh(onChange));
  return refresh(onChange);
}

let changed = () => {};

/** Draws the view of the address anew. */
export async function refresh(onChange = changed) {
  changed = onChange;
  current?.abort();
  const controller = (current = new AbortController());
  const { segments, query } = parse(location.hash);
  if (segments.length === 0) return void location.replace(href("/detect"));
  const route = routes.map((route) => ({ route, params: match(route[0], segments) })).find(({ params }) => params);
  // An entry of the history that was shown before is a step back or forward: a list may be where it was left.
  const returning = history.state?.visited === true;
  history.replaceState({ visited: true }, "");
  const path = segments.join("/");
  const moved = shown !== null && shown !== path;
  shown = path;
  onChange(segments[0]);
  const [, title, load] = route?.route ?? [null, "Not found", () => import("./views/lost.js")];
  document.title = `${title} · facecrawl`;
  // A module that could not be fetched (the service stopped) is tried again with the next step.
  const view = await load().catch(() => ({ show: (page) => page.append("This view could not be loaded. Is the service running?") }));
  if (controller.signal.aborted) return;
  const page = document.createElement("div");
  page.className = "view";
  outlet.replaceChildren(page);
  if (!returning) scrollTo(0, 0);
  view.show(page, { params: route?.params ?? {}, query, signal: controller.signal, returning });
  // Who listens hears where they are; who looks sees no ring.
  if (moved) outlet.focus({ preventScroll: true });
}

function match(pattern, segments) {
  const parts = pattern.split("/");
  if (parts.length !== segments.length) return null;
  const params = {};
  for (const [index, part] of parts.entries()) {
    if (part.startsWith(":")) params[part.slice(1)] = segments[index];
    else if (part !== segments[index]) return null;
  }
  return params;
}
