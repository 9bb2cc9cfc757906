// Parts of the page that stay as they are until what they show has changed.

const partKeys = new Map();

/** Draw a part of the page anew if its key has changed. Parts stand in the order in which they were first drawn. */
function part(name, key, make) {
  const text = JSON.stringify(key);
  if (partKeys.get(name) === text) return;
  partKeys.set(name, text);
  let section = document.getElementById(`part-${name}`);
  if (section === null) {
    section = element("div", { id: `part-${name}`, class: "part" });
    page.append(section);
  }
  section.replaceChildren(...make().flat().filter((child) => child !== ""));
}

/** Elements by id, each made once for what it shows. */
class Keyed {
  constructor(make) {
    this.make = make;
    this.held = new Map();
  }

  of(id, shown, ...about) {
    const held = this.held.get(id);
    if (held !== undefined && held.shown === shown) return held.element;
    const made = this.make(...about);
    this.held.set(id, { shown, element: made });
    return made;
  }

  /** Forget all others. */
  keep(ids) {
    for (const id of this.held.keys()) {
      if (!ids.has(id)) this.held.delete(id);
    }
  }
}

/** Make these the children, moving as few of them as possible from the front on. */
function place(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) {
    if (!wanted.has(child)) child.remove();
  }
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] || null);
  });
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** What stands in a closed `details` is made when it is opened first. */
function lazily(make) {
  const place = element("div", {});
  requestAnimationFrame(() => {
    const around = place.closest("details");
    const fill = () => around.open && !place.firstChild && place.append(make());
    if (around === null) return;
    around.addEventListener("toggle", fill);
    fill();
  });
  return place;
}
