// The collection that the views are about: a switch in the header, remembered by the browser, overruled by an address that names one.
import { get } from "./api.js";
import { h, put } from "./dom.js";
import { may } from "./session.js";

const STORE = "facecrawl.collection";
let known = [];

export const collections = () => known;
export const current = () => (known.length > 0 ? chosen() : undefined);
const chosen = () => localStorage.getItem(STORE) ?? "default";

/** Makes a collection the one that is shown. */
export function choose(name) {
  localStorage.setItem(STORE, name);
  const select = document.getElementById("collection");
  if ([...select.options].some((option) => option.value === name)) select.value = name;
}

let switched = () => {};

/** `then` is called when somebody switches in the header. */
export const onSwitch = (then) => (switched = then);

/** Asks which there are. With one, there is nothing to switch. */
export async function load() {
  const select = document.getElementById("collection");
  // Where they cannot be listed, the views say what they are refused.
  known = may("read") ? await get("/collections").then((answer) => answer.collections, () => []) : [];
  if (known.length > 0 && !known.some(({ name }) => name === chosen())) choose(known[0].name);
  put(select, known.map(({ name }) => h("option", { value: name, selected: name === current() }, name)));
  document.getElementById("switcher").hidden = known.length < 2;
  select.onchange = () => (choose(select.value), switched());
}
