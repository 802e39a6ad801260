// Starts the web page: routes, theme, health indicator, key and collections.
import { call } from "./api.js";
import * as collections from "./collections.js";
import { icon, put } from "./dom.js";
import * as keys from "./keys.js";
import * as navigation from "./navigation.js";
import { refresh, start } from "./router.js";
import * as session from "./session.js";

const byId = (id) => document.getElementById(id);

/** Path, title, required scope and module of each view. */
const VIEWS = [
  ["detect", "Detect", "analyze", () => import("./views/detect.js")],
  ["search", "Search", "search", () => import("./views/search.js")],
  ["crawls", "Crawls", "read", () => import("./views/crawls.js")],
  ["crawls/new", "New crawl", "crawl", () => import("./views/new_crawl.js")],
  ["crawls/:id", "Crawl", "read", () => import("./views/crawl.js")],
  ["videos", "Videos", "read", () => import("./views/videos.js")],
  ["videos/:id", "Video", "read", () => import("./views/video.js")],
  ["faces", "Faces", "read", () => import("./views/faces.js")],
  ["faces/:id", "Face", "read", () => import("./views/face.js")],
  ["images/:id", "Image", "read", () => import("./views/image.js")],
  ["people", "People", "read", () => import("./views/people.js")],
  ["people/:id", "Person", "read", () => import("./views/person.js")],
  ["watchlists", "Watchlists", "watch", () => import("./views/watchlists.js")],
  ["watchlists/new", "New watchlist", "watch", () => import("./views/new_watchlist.js")],
  ["watchlists/:id", "Watchlist", "watch", () => import("./views/watchlist.js")],
  ["alerts", "Alerts", "watch", () => import("./views/alerts.js")],
  ["cameras", "Cameras", "watch", () => import("./views/cameras.js")],
  ["collections", "Collections", "read", () => import("./views/collections.js")],
  ["collections/new", "New collection", "admin", () => import("./views/new_collection.js")],
  ["collections/:id", "Collection", "read", () => import("./views/collection.js")],
  ["erasures", "Erasures", "erase", () => import("./views/erasures.js")],
  ["erasures/new", "New erasure", "erase", () => import("./views/new_erasure.js")],
  ["audit", "Audit log", "admin", () => import("./views/audit.js")],
  ["keys", "Keys", "keys", () => import("./views/keys.js")],
  ["keys/new", "New key", "keys", () => import("./views/new_key.js")],
  ["system", "System", "system", () => import("./views/system.js")],
];

/** The routes. If the key lacks the scope of a view, a message replaces the view. */
const routes = VIEWS.map(([pattern, title, scope, load]) =>
  [pattern, title, async () => (session.may(scope) ? load() : (await import("./views/missing_scope.js")).missingScope(title, scope))]);

/** Installs the button that cycles through the automatic, light and dark themes. */
function installTheme() {
  const control = byId("theme");
  const root = document.documentElement;
  const faces = { auto: ["auto", "system setting"], light: ["sun", "light"], dark: ["moon", "dark"] };
  const show = () => {
    const [symbol, name] = faces[root.dataset.theme ?? "auto"];
    control.setAttribute("aria-label", `Colours: ${name}. Change`);
    control.title = `Colours: ${name}`;
    put(control, icon(symbol));
  };
  control.addEventListener("click", () => {
    const next = { auto: "light", light: "dark", dark: "auto" }[root.dataset.theme ?? "auto"];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    localStorage.setItem("facecrawl.theme", next);
    show();
  });
  show();
}

/**
 * Shows the health of the service in the header. Checks the health twice a minute while the tab is
 * visible.
 */
async function watchHealth() {
  const place = byId("health");
  const checkHealth = async () => {
    if (document.hidden) return;
    const [state, text] = await call("GET", "/health/ready").then(() => ["ok", "Ready"], (problem) => ["bad", problem.status ? "Not ready" : "Offline"]);
    place.dataset.state = state;
    put(place, text);
  };
  setInterval(checkHealth, 30_000);
  await checkHealth();
}

// The hash of the address selects the view, so this link must not change it.
byId("skip").addEventListener("click", (event) => (event.preventDefault(), byId("main").focus()));
installTheme();
/** Shows who is signed on, so that people who share a computer notice it. */
function showPerson(name) {
  const label = byId("person");
  label.hidden = name === null;
  label.textContent = name ?? "";
  label.title = name === null ? "" : `Signed on as ${name}`;
}

/** Loads the data that depends on the key: the collections and the allowed views. */
async function begin() {
  await session.load();
  showPerson(session.personName());
  await collections.load();
  navigation.showAllowed(VIEWS);
}
collections.onSwitch(() => refresh());
keys.install(() => begin().then(() => refresh()));
navigation.install();
watchHealth();
await begin();
await start(routes, byId("main"), navigation.markCurrent);
