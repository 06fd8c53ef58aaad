// A list of choices as a form control.

import { element } from "./dom.js";

/** A function from a name and a value to a select element with these titles by value. */
export function choices(titles) {
  return (name, value) => {
    const known = Object.hasOwn(titles, value) ? titles : { ...titles, [value]: value };
    const options = Object.entries(known).map(([each, title]) =>
      element("option", { value: each, selected: each === value }, title),
    );
    return element("select", { name }, options);
  };
}
