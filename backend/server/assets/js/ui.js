// What every view shows in the same way: loading, nothing, trouble, questions, short messages.
import { Problem } from "./api.js";
import { h, icon, put } from "./dom.js";

/** A heading with what can be done beside it. */
export const heading = (text, ...actions) => h("div.heading", {}, h("h1", {}, text), h("div.actions", {}, actions));

/** A button. `kind`: "", "primary", "danger", "plain". */
export const button = (label, { kind = "", symbol, onclick, ...props } = {}) =>
  h(`button.button${kind ? `.${kind}` : ""}`, { type: "button", onclick, ...props }, symbol && icon(symbol), h("span", {}, label));

/** A link that looks like a button. */
export const linkButton = (label, target, { kind = "", symbol, ...props } = {}) =>
  h(`a.button${kind ? `.${kind}` : ""}`, { href: target, ...props }, symbol && icon(symbol), h("span", {}, label));

/** A word with a colour. `tone`: "ok", "warn", "bad", "busy", "". The word says it all; the colour repeats it. */
export const chip = (text, tone = "") => h(`span.chip${tone ? `.${tone}` : ""}`, {}, text);

/** Name and value pairs. */
export const facts = (pairs) =>
  h("dl.facts", {}, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** A panel with a title. */
export const panel = (title, ...children) => h("section.panel", {}, title && h("h2", {}, title), children);

/** A labelled field. */
export function field(label, control, hint) {
  const id = (control.id ||= `f${++ids}`);
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div.field", {}, h("label", { for: id }, label), control, hint && h("p.hint", { id: `${id}-hint` }, hint));
}
let ids = 0;

/** Nothing is there yet, and what can be done about it. */
export const empty = (symbol, text, ...actions) => h("div.empty", {}, icon(symbol), h("p", {}, text), h("div.actions", {}, actions));

/** It takes a moment. */
export const loading = (text = "Loading…") => h("p.loading", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), text);

/** Trouble, as the service put it: what went wrong, what is allowed, and the id to ask for help with. */
export function trouble(problem, retry) {
  const known = problem instanceof Problem;
  return h("div.trouble", { role: "alert" },
    icon("warn"),
    h("div", {},
      h("p.strong", {}, known ? problem.title : "This page has a fault"),
      h("p", {}, problem.message),
      problem.errors?.length > 0 && h("ul", {}, problem.errors.map((line) => h("li", {}, line))),
      problem.allowed?.length > 0 && h("p", {}, `Allowed: ${problem.allowed.join(", ")}`),
      problem.retryAfter && h("p", {}, `Try again in ${problem.retryAfter} s.`),
      h("p.hint", {}, known ? `Code ${problem.code}` : "", problem.requestId && [" · request ", h("code", {}, problem.requestId)]),
      retry && button("Try again", { symbol: "refresh", onclick: retry }),
    ),
  );
}

/** Runs `task` and draws its result into `slot`: loading first, trouble with a second chance where it fails. What comes after the view was left is dropped. */
export async function fillWith(slot, signal, task, draw, waiting = loading()) {
  if (waiting) put(slot, waiting);
  try {
    const result = await task();
    if (!signal.aborted) put(slot, draw(result));
    return result;
  } catch (problem) {
    if (signal.aborted || problem.name === "AbortError") return undefined;
    if (!(problem instanceof Problem)) console.error(problem);
    put(slot, trouble(problem, () => fillWith(slot, signal, task, draw)));
  }
}

/** A short message that goes away. Trouble stays until it is closed. */
export function toast(message, { bad = false } = {}) {
  const note = h(`div.toast${bad ? ".bad" : ""}`, {}, h("p", {}, message));
  const close = () => note.remove();
  note.append(h("button.plain", { type: "button", "aria-label": "Close this message", onclick: close }, icon("close")));
  document.getElementById("toasts").append(note);
  if (!bad) setTimeout(close, 6000);
}

/** Says that something failed. A fault of the page itself goes to the console too. */
export function failed(problem) {
  if (problem.name === "AbortError") return;
  if (!(problem instanceof Problem)) console.error(problem);
  toast(`${problem.message}${problem.requestId ? ` (request ${problem.requestId})` : ""}`, { bad: true });
}

/** Runs what a button stands for; the button waits with it. Resolves to undefined where it failed. */
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
 * A modal window; resolves to what `close(value)` was called with, null when it was left. `build(close)` answers its content. A `firm` one is not left by
 * Escape.
 */
export function modal(title, build, { firm = false } = {}) {
  return new Promise((resolve) => {
    const window = h("dialog.modal", { "aria-labelledby": "modal-title", closedby: firm ? "none" : null });
    let value = null;
    const close = (result) => ((value = result ?? null), window.close());
    window.append(h("h2", { id: "modal-title" }, title), build(close));
    if (firm) window.addEventListener("cancel", (event) => event.preventDefault());
    window.addEventListener("close", () => (window.remove(), resolve(value)));
    // A view that is left by a link in the window takes the window along.
    addEventListener("hashchange", () => window.close(), { once: true });
    document.body.append(window);
    window.showModal();
  });
}

/**
 * Asks before something is done that cannot be undone. `option` adds a box to tick; `typed` is a word that has to be typed first. Resolves to null, or
 * to `{ ticked }`.
 */
export function confirm(title, text, action, { option, typed, danger = true } = {}) {
  return modal(title, (close) => {
    const box = option && h("input", { type: "checkbox", id: "confirm-option" });
    const word = typed && h("input", { autocomplete: "off", spellcheck: "false", autocapitalize: "none", autofocus: true, oninput: () => (go.disabled = word.value !== typed) });
    const go = h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit", disabled: Boolean(typed) }, action);
    return h("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), close({ ticked: box?.checked ?? false })) },
      h("p", {}, text),
      box && h("label.check", { for: "confirm-option" }, box, option),
      word && field(["Type ", h("code", {}, typed), " to go on"], word),
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
