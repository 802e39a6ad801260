// A message for an address without a view.
import { h } from "../dom.js";
import { empty } from "../ui.js";

export function show(page) {
  page.append(h("h1", {}, "Nothing here"), empty("faces", "There is no view at this address.", h("a.button", { href: "#/detect" }, "Go to Detect")));
}
