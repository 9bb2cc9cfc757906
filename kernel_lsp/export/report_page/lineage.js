// Who came from whom, as a tree that the arrow keys walk. A candidate with two parents stands under the first.

const nodes = new Map(); // the tree's items by candidate: they stay while the tree grows

function lineageFrame() {
  return element("ul", { class: "tree", role: "tree", "aria-label": "Lineage of the candidates", onkeydown: walk });
}

/** Put the candidates into the tree: new ones where they belong, others with what they now say. */
function fillLineage(tree, report, chosenId, choose) {
  const known = new Set(report.candidates.map((candidate) => candidate.candidate_id));
  const children = new Map();
  const roots = [];
  for (const candidate of report.candidates) {
    const parent = candidate.parents.find((id) => known.has(id) && id !== candidate.candidate_id);
    if (parent === undefined) roots.push(candidate);
    else children.set(parent, [...(children.get(parent) || []), candidate]);
  }
  for (const id of nodes.keys()) if (!known.has(id)) nodes.delete(id);
  const about = { report, children, chosenId, choose, seen: new Set() };
  place(tree, roots.map((candidate) => branch(candidate, 1, about)));
  const at = (nodes.get(chosenId) || nodes.values().next().value || {}).item;
  for (const { item } of nodes.values()) setAttribute(item, "tabindex", item === at ? "0" : "-1");
}

function branch(candidate, level, tree) {
  const id = candidate.candidate_id;
  tree.seen.add(id);
  const below = (tree.children.get(id) || []).filter((child) => !tree.seen.has(child.candidate_id));
  const node = nodes.get(id) || nodeOf(id, tree.choose);
  setAttribute(node.item, "aria-level", String(level));
  setAttribute(node.item, "aria-selected", String(id === tree.chosenId));
  setAttribute(node.item, "aria-expanded", below.length ? "true" : null);
  setText(node.label, nodeText(candidate, tree.report));
  if (below.length) {
    node.group = node.group || element("ul", { role: "group" });
    place(node.group, below.map((child) => branch(child, level + 1, tree)));
  }
  place(node.item, below.length ? [node.label, node.group] : [node.label]);
  return node.item;
}

function nodeOf(id, choose) {
  const label = element("span", { class: "node", onclick: () => choose(id) });
  const node = { label, item: element("li", { role: "treeitem", tabindex: "-1", "data-id": id }, label), group: null };
  nodes.set(id, node);
  return node;
}

function nodeText(candidate, report) {
  const score = scoreOf(candidate);
  const verdict = lastVerdict(candidate);
  const state = verdict === null ? "being evaluated" : isRight(candidate) ? (score ? timeText(score.us) : "right") : verdict.outcome.kind.replaceAll("_", " ");
  const mark = candidate.candidate_id === report.winner_id ? " ★ winner" : "";
  const others = candidate.parents.length > 1 ? ` (also from ${candidate.parents.slice(1).map((id) => id.slice(0, 6)).join(", ")})` : "";
  return `${candidate.candidate_id.slice(0, 6)} g${candidate.generation + 1} ${state}${mark}${others}`;
}

function walk(event) {
  const items = [...event.currentTarget.querySelectorAll('[role="treeitem"]')];
  const here = items.indexOf(document.activeElement);
  if (here < 0) return;
  const item = items[here];
  const to = { ArrowDown: items[here + 1], ArrowUp: items[here - 1], Home: items[0], End: items[items.length - 1], ArrowRight: item.querySelector('[role="treeitem"]'), ArrowLeft: item.parentElement.closest('[role="treeitem"]') }[event.key];
  if (event.key === "Enter" || event.key === " ") {
    item.querySelector(".node").click();
  } else if (to) {
    item.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  } else {
    return;
  }
  event.preventDefault();
}
