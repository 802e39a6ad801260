// The hash of the address selects the view: `#/faces/ID?crawl_id=…`. Back, forward, reload and
// links work without further code.

let routes = [];
let outlet = null;
let current = null;
let shown = null;

/** Returns the path segments and the parameters of the address. */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { segments, query: Object.fromEntries(new URLSearchParams(search)) };
}

/** Returns the address of a view. */
export function href(path, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#${path}${set.length > 0 ? `?${new URLSearchParams(set)}` : ""}`;
}

/** Navigates to a view. */
export const go = (path, query) => (location.hash = href(path, query));

/** Writes filters to the address without a new entry in the history. */
export const setQuery = (query) => history.replaceState(history.state, "", href(`/${parse(location.hash).segments.join("/")}`, query));

/**
 * Starts the router. `table` holds `[pattern, title, load]`: `["faces/:id", "Face", () =>
 * import(…)]`. The function `show(outlet, context)` of a view draws it.
 */
export function start(table, element, onChange) {
  [routes, outlet] = [table, element];
  addEventListener("hashchange", () => refresh(onChange));
  return refresh(onChange);
}

let changed = () => {};

/** Draws the view of the current address again. */
export async function refresh(onChange = changed) {
  changed = onChange;
  current?.abort();
  const controller = (current = new AbortController());
  const { segments, query } = parse(location.hash);
  if (segments.length === 0) return void location.replace(href("/detect"));
  const route = routes.map((route) => ({ route, params: match(route[0], segments) })).find(({ params }) => params);
  // If a history entry was shown before, the user went back or forward, and a list can restore its
  // state.
  const returning = history.state?.visited === true;
  history.replaceState({ visited: true }, "");
  const path = segments.join("/");
  const moved = shown !== null && shown !== path;
  shown = path;
  onChange(segments[0]);
  const [, title, load] = route?.route ?? [null, "Not found", () => import("./views/not_found.js")];
  document.title = `${title} · facecrawl`;
  // A module that could not be loaded, for example because the service had stopped, is requested
  // again at the next navigation.
  const view = await load().catch(() => ({ show: (page) => page.append("This view could not be loaded. Check whether the service is running, then reload the page.") }));
  if (controller.signal.aborted) return;
  const page = document.createElement("div");
  page.className = "view";
  outlet.replaceChildren(page);
  if (!returning) scrollTo(0, 0);
  view.show(page, { params: route?.params ?? {}, query, signal: controller.signal, returning });
  // Screen readers announce the new view. No focus ring is visible.
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
