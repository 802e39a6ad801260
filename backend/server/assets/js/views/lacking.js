// A view that the key does not open.
import { h } from "../dom.js";
import { ownKey } from "../session.js";
import { button, empty } from "../ui.js";
import { scopeMeaning } from "../words.js";

/** The view that stands in for another, which needs `scope`. */
export const lacking = (title, scope) => ({
  show(page) {
    const { name, scopes } = ownKey();
    page.append(h("h1", {}, title), empty("keys",
      [`This needs a key with the scope `, h("code", {}, scope), `: ${scopeMeaning(scope)} Yours, “${name}”, has ${scopes.join(", ")}.`],
      button("Use another key", { symbol: "keys", onclick: () => document.getElementById("key").click() })));
  },
});
