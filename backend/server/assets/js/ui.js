// Elements that all views share: headings, buttons, progress, errors, dialogs and short messages.
import { Problem } from "./api.js";
import { h, icon, put } from "./dom.js";

/** Returns a heading with the given actions beside it. */
export const heading = (text, ...actions) => h("div.heading", {}, h("h1", {}, text), h("div.actions", {}, actions));

/** Returns a button. `kind` is "", "primary", "danger" or "plain". */
export const button = (label, { kind = "", symbol, onclick, ...props } = {}) =>
  h(`button.button${kind ? `.${kind}` : ""}`, { type: "button", onclick, ...props }, symbol && icon(symbol), h("span", {}, label));

/** Returns a link that looks like a button. */
export const linkButton = (label, target, { kind = "", symbol, ...props } = {}) =>
  h(`a.button${kind ? `.${kind}` : ""}`, { href: target, ...props }, symbol && icon(symbol), h("span", {}, label));

/**
 * Returns a short text with a colour. `tone` is "ok", "warn", "bad", "busy" or "". The text
 * contains the full information, and the colour only repeats it.
 */
export const chip = (text, tone = "") => h(`span.chip${tone ? `.${tone}` : ""}`, {}, text);

/** Returns a list of names and values. */
export const facts = (pairs) =>
  h("dl.facts", {}, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** Returns a panel with a title. */
export const panel = (title, ...children) => h("section.panel", {}, title && h("h2", {}, title), children);

/** Returns a form field with its label and hint. */
export function field(label, control, hint) {
  const id = (control.id ||= `f${++ids}`);
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div.field", {}, h("label", { for: id }, label), control, hint && h("p.hint", { id: `${id}-hint` }, hint));
}
let ids = 0;

/** Returns the content of an empty area: an explanation and actions. */
export const empty = (symbol, text, ...actions) => h("div.empty", {}, icon(symbol), h("p", {}, text), h("div.actions", {}, actions));

/** Returns a progress indicator. */
export const loading = (text = "Loading…") => h("p.loading", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), text);

/**
 * Returns an error as the service reported it: what is wrong, what is allowed, and the request id
 * for support.
 */
export function problemBox(problem, retry) {
  const known = problem instanceof Problem;
  return h("div.problem", { role: "alert" },
    icon("warn"),
    h("div", {},
      h("p.strong", {}, known ? problem.title : "Error in this page"),
      h("p", {}, problem.message),
      problem.errors?.length > 0 && h("ul", {}, problem.errors.map((line) => h("li", {}, line))),
      problem.allowed?.length > 0 && h("p", {}, `Allowed: ${problem.allowed.join(", ")}`),
      problem.retryAfter && h("p", {}, `Try again in ${problem.retryAfter} s.`),
      h("p.hint", {}, known ? `Code ${problem.code}` : "", problem.requestId && [" · request ", h("code", {}, problem.requestId)]),
      retry && button("Try again", { symbol: "refresh", onclick: retry }),
    ),
  );
}

/**
 * Runs `task` and draws its result into `slot`. Shows a progress indicator first. Shows an error
 * with a retry button if the task fails. Results that arrive after the user left the view are
 * discarded.
 */
export async function fillWith(slot, signal, task, draw, waiting = loading()) {
  if (waiting) put(slot, waiting);
  try {
    const result = await task();
    if (!signal.aborted) put(slot, draw(result));
    return result;
  } catch (problem) {
    if (signal.aborted || problem.name === "AbortError") return undefined;
    if (!(problem instanceof Problem)) console.error(problem);
    put(slot, problemBox(problem, () => fillWith(slot, signal, task, draw)));
  }
}

/** Shows a short message that disappears. An error stays until it is closed. */
export function toast(message, { bad = false } = {}) {
  const note = h(`div.toast${bad ? ".bad" : ""}`, {}, h("p", {}, message));
  const close = () => note.remove();
  note.append(h("button.plain", { type: "button", "aria-label": "Close this message", onclick: close }, icon("close")));
  document.getElementById("toasts").append(note);
  if (!bad) setTimeout(close, 6000);
}

/** Shows a failure. A fault in the code of the web page itself is also written to the console. */
export function failed(problem) {
  if (problem.name === "AbortError") return;
  if (!(problem instanceof Problem)) console.error(problem);
  toast(`${problem.message}${problem.requestId ? ` (request ${problem.requestId})` : ""}`, { bad: true });
}

/**
 * Runs the task of a button and disables the button until the task ends. Resolves to undefined if
 * the task failed.
 */
export async function busy(control, task) {
  control.disabled = true;
  try {
    return await task();
  } catch (problem) {
    failed(problem);
  } finally {
    control.disabled = false;
  }
}

/**
 * Opens a modal window. Resolves to the argument of `close(value)`, or to null if the user closed
 * the window. `build(close)` returns the content. Escape does not close a `firm` window.
 */
export function modal(title, build, { firm = false } = {}) {
  return new Promise((resolve) => {
    const window = h("dialog.modal", { "aria-labelledby": "modal-title", closedby: firm ? "none" : null });
    let value = null;
    const close = (result) => ((value = result ?? null), window.close());
    window.append(h("h2", { id: "modal-title" }, title), build(close));
    if (firm) window.addEventListener("cancel", (event) => event.preventDefault());
    window.addEventListener("close", () => (window.remove(), resolve(value)));
    // A link in the window that leads to another view also closes the window.
    addEventListener("hashchange", () => window.close(), { once: true });
    document.body.append(window);
    window.showModal();
  });
}

/**
 * Asks for confirmation before an action that cannot be undone. `option` adds a checkbox. `typed`
 * is a word that the user must type. Resolves to null, or to `{ ticked }`.
 */
export function confirm(title, text, action, { option, typed, danger = true } = {}) {
  return modal(title, (close) => {
    const box = option && h("input", { type: "checkbox", id: "confirm-option" });
    const word = typed && h("input", { autocomplete: "off", spellcheck: "false", autocapitalize: "none", autofocus: true, oninput: () => (go.disabled = word.value !== typed) });
    const go = h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit", disabled: Boolean(typed) }, action);
    return h("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), close({ ticked: box?.checked ?? false })) },
      h("p", {}, text),
      box && h("label.check", { for: "confirm-option" }, box, option),
      word && field(["Type ", h("code", {}, typed), " to continue"], word),
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null), autofocus: !typed }), go),
    );
  });
}

/** Asks for one line of text. Resolves to null, or to the text. */
export function ask(title, label, { value = "", action = "Save", hint, type = "text", required = true } = {}) {
  return modal(title, (close) => {
    const input = h("input", { type, value, required, autofocus: true, autocomplete: "off", maxlength: 500 });
    return h("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), close(input.value.trim())) },
      field(label, input, hint),
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null) }), h("button.button.primary", { type: "submit" }, action)),
    );
  });
}
