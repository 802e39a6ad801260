// An address that is no view.
import { h } from "../dom.js";
import { empty } from "../ui.js";

export function show(page) {
  page.append(h("h1", {}, "Nothing here"), empty("faces", "This address is no view of facecrawl.", h("a.button", { href: "#/detect" }, "Go to Detect")));
}
