// Navigation between the views. On a phone, the less common views are in a sheet above the bar.
import { may } from "./session.js";

const byId = (id) => document.getElementById(id);
const links = () => [...byId("nav").querySelectorAll("a[href^='#/']")];

/** Installs the button that opens and closes the sheet. */
export function install() {
  const control = byId("more");
  const set = (open) => {
    byId("nav").classList.toggle("open", open);
    control.setAttribute("aria-expanded", String(open));
  };
  const isOpen = () => control.getAttribute("aria-expanded") === "true";
  control.addEventListener("click", () => set(!isOpen()));
  addEventListener("hashchange", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isOpen()) return;
    set(false);
    control.focus();
  });
  document.addEventListener("pointerdown", (event) => isOpen() && !byId("nav").contains(event.target) && set(false));
}

/**
 * Shows only links to views that the key allows. If the user opens another view by its address, the
 * view explains which scope is missing.
 */
export function showAllowed(views) {
  const scopes = new Map(views.map(([path, , scope]) => [`#/${path}`, scope]));
  for (const link of links()) link.hidden = !may(scopes.get(link.getAttribute("href")));
}

/** Marks the link of the current view. */
export function markCurrent(view) {
  const target = `#/${view === "images" ? "faces" : view}`;
  for (const link of links()) {
    if (link.getAttribute("href") === target) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // The button is marked if the current view is listed in the sheet that it opens.
  byId("more").classList.toggle("here", byId("rest").querySelector("[aria-current]") !== null);
}
