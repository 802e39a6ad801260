// The way to the views. On a phone those that are needed less stand in a sheet above the bar.
import { may } from "./session.js";

const byId = (id) => document.getElementById(id);
const links = () => [...byId("nav").querySelectorAll("a[href^='#/']")];

/** Opens and closes the sheet. */
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

/** Shows the views that the key opens; the others say so where somebody goes there by address. */
export function offer(views) {
  const scopes = new Map(views.map(([path, , scope]) => [`#/${path}`, scope]));
  for (const link of links()) link.hidden = !may(scopes.get(link.getAttribute("href")));
}

/** Marks where one is. */
export function mark(view) {
  const target = `#/${view === "images" ? "faces" : view}`;
  for (const link of links()) {
    if (link.getAttribute("href") === target) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // The button stands for what is in its sheet.
  byId("more").classList.toggle("here", byId("rest").querySelector("[aria-current]") !== null);
}
