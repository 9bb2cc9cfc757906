// Who came from whom, as a tree that the arrow keys walk. A candidate with two parents stands under the first.

function lineage(report, chosenId, choose) {
  const known = new Set(report.candidates.map((candidate) => candidate.candidate_id));
  const children = new Map();
  const roots = [];
  for (const candidate of report.candidates) {
    const parent = candidate.parents.find((id) => known.has(id) && id !== candidate.candidate_id);
    if (parent === undefined) roots.push(candidate);
    else children.set(parent, [...(children.get(parent) || []), candidate]);
  }
  const tree = element("ul", { class: "tree", role: "tree", "aria-label": "Lineage of the candidates", onkeydown: walk });
  tree.append(...roots.map((candidate) => branch(candidate, 1, { report, children, chosenId, choose, seen: new Set() })));
  const first = tree.querySelector('[aria-selected="true"]') || tree.querySelector('[role="treeitem"]');
  if (first) first.setAttribute("tabindex", "0");
  return tree;
}

function branch(candidate, level, tree) {
  tree.seen.add(candidate.candidate_id);
  const below = (tree.children.get(candidate.candidate_id) || []).filter((child) => !tree.seen.has(child.candidate_id));
  const isChosen = candidate.candidate_id === tree.chosenId;
  return element("li", { role: "treeitem", tabindex: "-1", "aria-level": level, "aria-selected": String(isChosen), "aria-expanded": below.length ? "true" : null, "data-id": candidate.candidate_id },
    element("span", { class: "node", onclick: () => tree.choose(candidate.candidate_id) }, nodeText(candidate, tree.report)),
    below.length ? element("ul", { role: "group" }, below.map((child) => branch(child, level + 1, tree))) : null);
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
