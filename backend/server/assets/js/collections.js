// The current collection. The user selects it in the header, and the browser stores it. An address
// that contains a collection overrides this selection.
import { get } from "./api.js";
import { h, put } from "./dom.js";
import { may } from "./session.js";

const STORE = "facecrawl.collection";
let known = [];

export const collections = () => known;
export const current = () => (known.length > 0 ? chosen() : undefined);
const chosen = () => localStorage.getItem(STORE) ?? "default";

/** Makes a collection the current one. */
export function choose(name) {
  localStorage.setItem(STORE, name);
  const select = document.getElementById("collection");
  if ([...select.options].some((option) => option.value === name)) select.value = name;
}

let switched = () => {};

/** Registers `then`, which is called when the user switches the collection in the header. */
export const onSwitch = (then) => (switched = then);

/** Loads the list of collections. If there is only one collection, the switch is hidden. */
export async function load() {
  const select = document.getElementById("collection");
  // If the list cannot be read, each view shows the error of its own requests.
  known = may("read") ? await get("/collections").then((answer) => answer.collections, () => []) : [];
  if (known.length > 0 && !known.some(({ name }) => name === chosen())) choose(known[0].name);
  put(select, known.map(({ name }) => h("option", { value: name, selected: name === current() }, name)));
  document.getElementById("switcher").hidden = known.length < 2;
  select.onchange = () => (choose(select.value), switched());
}
