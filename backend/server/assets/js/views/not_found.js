// A message for an address that does not belong to any view.
import { h } from "../dom.js";
import { empty } from "../ui.js";

export function show(page) {
  page.append(h("h1", {}, "Page not found"), empty("faces", "This address does not exist.", h("a.button", { href: "#/detect" }, "Go to Detect")));
}
