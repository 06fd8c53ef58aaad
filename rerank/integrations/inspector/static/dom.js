// Builds elements. Texts become text nodes and are never read as markup. A text next to other content is isolated from it,
// so that characters in it that change the direction of writing do not turn its neighbours.

/** An element with properties (class, attributes, on… listeners) and children, which are elements, texts or null. */
export function element(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

/** An SVG element, see `element`. */
export function svg(name, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  const given = children.flat().filter((child) => child !== null && child !== undefined && child !== "");
  made.append(...(given.length > 1 ? given.map(isolated) : given));
  return made;
}

function isolated(child) {
  if (typeof child !== "string" || !child.trim()) return child;
  const text = document.createElement("bdi");
  text.append(child);
  return text;
}

/** A text for screen readers alone. */
export function unseen(text) {
  return element("span", { class: "unseen" }, text);
}
