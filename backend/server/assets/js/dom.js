// Functions that create elements. Text is always set as text, because the content security policy
// of the web page forbids markup from strings.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Creates an element: `h("a.button", { href: "#/x", onclick: f }, "text", child)`. Children that
 * are null, undefined or false are skipped.
 */
export function h(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length > 0) element.classList.add(...classes);
  return fill(assign(element, props ?? {}), children);
}

/** Creates an SVG element in the same way. */
export function s(tag, props, ...children) {
  return fill(assign(document.createElementNS(SVG, tag), props ?? {}), children);
}

/**
 * Creates an icon of the sprite. The meaning of the icon must also be given as text or as the label
 * of the button.
 */
export function icon(name) {
  return s("svg", { class: "icon", "aria-hidden": "true" }, s("use", { href: `/assets/icons.svg#${name}` }));
}

/** Replaces the content of an element with `children`. */
export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, children);
}

function assign(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(`--${key}`, v);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
  return element;
}
