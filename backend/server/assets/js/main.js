// Puts the parts together.
import { call } from "./api.js";
import * as collections from "./collections.js";
import { icon, put } from "./dom.js";
import * as keys from "./keys.js";
import { known } from "./people.js";
import { refresh, start } from "./router.js";

const byId = (id) => document.getElementById(id);

const VIEWS = [
  ["detect", "Detect", () => import("./views/detect.js")],
  ["search", "Search", () => import("./views/search.js")],
  ["crawls", "Crawls", () => import("./views/crawls.js")],
  ["crawls/new", "New crawl", () => import("./views/new_crawl.js")],
  ["crawls/:id", "Crawl", () => import("./views/crawl.js")],
  ["faces", "Faces", () => import("./views/faces.js")],
  ["faces/:id", "Face", () => import("./views/face.js")],
  ["images/:id", "Image", () => import("./views/image.js")],
  ["people", "People", () => import("./views/people.js")],
  ["people/:id", "Person", () => import("./views/person.js")],
  ["system", "System", () => import("./views/system.js")],
];

function markNav(view) {
  const tab = view === "images" ? "faces" : view;
  for (const link of byId("nav").querySelectorAll("a[href^='#']")) {
    if (link.getAttribute("href") === `#/${tab}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Automatic, light, dark, and round again. */
function installTheme() {
  const control = byId("theme");
  const root = document.documentElement;
  const faces = { auto: ["auto", "as the system"], light: ["sun", "light"], dark: ["moon", "dark"] };
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

/** A word on the service's health in the header; looked at twice a minute while someone looks. */
async function watchHealth() {
  const place = byId("health");
  const look = async () => {
    if (document.hidden) return;
    const [state, words] = await call("GET", "/health/ready").then(() => ["ok", "Ready"], (problem) => ["bad", problem.status ? "Not ready" : "Offline"]);
    place.dataset.state = state;
    put(place, words);
  };
  setInterval(look, 30_000);
  await look();
}

// The address is the view's, so this link must not change it.
byId("skip").addEventListener("click", (event) => (event.preventDefault(), byId("main").focus()));
installTheme();
const loadCollections = () => collections.load(() => refresh());
keys.install(() => loadCollections().then(() => refresh()));
watchHealth();
known().then((there) => (byId("people-link").hidden = !there));
await loadCollections();
await start(VIEWS, byId("main"), markNav);
