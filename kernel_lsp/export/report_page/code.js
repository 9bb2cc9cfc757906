// A kernel with what was found on its lines, and the difference of two texts.

const CONTEXT_LINES = 3;
const MAX_DIFF_CELLS = 4e6; // lines times lines: beyond it the two texts are shown as removed and added

/** Each line with its number; `findings` at their lines. */
function codeListing(text, findings) {
  const byLine = new Map();
  for (const finding of findings) {
    if (finding.line) byLine.set(finding.line, [...(byLine.get(finding.line) || []), finding]);
  }
  const lines = text.replace(/\n$/, "").split("\n");
  return element("pre", { tabindex: "0", "aria-label": "Kernel" }, lines.map((line, index) => [
    element("span", { class: "code-line" }, element("i", {}, String(index + 1)), line),
    (byLine.get(index + 1) || []).map((finding) => element("span", { class: `finding ${finding.severity}` }, `${finding.source} ${finding.code}: ${finding.message}`)),
  ]));
}

function diffListing(before, after, name) {
  const rows = withGaps(diff(before.replace(/\n$/, "").split("\n"), after.replace(/\n$/, "").split("\n")));
  if (!rows.some((row) => row.kind !== "same" && row.kind !== "gap")) return element("p", { class: "soft" }, "No difference.");
  return element("pre", { tabindex: "0", "aria-label": name }, rows.map((row) => element("span", { class: `code-line ${row.kind}` }, element("i", {}, { added: "+", removed: "−" }[row.kind] || ""), row.text)));
}

/** The longest common subsequence of lines: [{kind: same | added | removed, text}]. */
function diff(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  const same = (text) => ({ kind: "same", text });
  const middle = differing(before.slice(start, before.length - end), after.slice(start, after.length - end));
  return [...before.slice(0, start).map(same), ...middle, ...before.slice(before.length - end).map(same)];
}

function differing(before, after) {
  const removed = (text) => ({ kind: "removed", text });
  const added = (text) => ({ kind: "added", text });
  if (before.length * after.length > MAX_DIFF_CELLS) return [...before.map(removed), ...after.map(added)];
  const lengths = Array.from({ length: before.length + 1 }, () => new Uint32Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      lengths[i][j] = before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < before.length && j < after.length) {
    if (before[i] === after[j]) found.push({ kind: "same", text: before[i++] }), j++;
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) found.push(removed(before[i++]));
    else found.push(added(after[j++]));
  }
  return [...found, ...before.slice(i).map(removed), ...after.slice(j).map(added)];
}

function withGaps(rows) {
  const isNear = rows.map(() => false);
  rows.forEach((row, index) => {
    if (row.kind === "same") return;
    for (let near = index - CONTEXT_LINES; near <= index + CONTEXT_LINES; near++) isNear[near] = true;
  });
  const found = [];
  rows.forEach((row, index) => {
    if (isNear[index]) found.push(row);
    else if (found.length === 0 || found[found.length - 1].kind !== "gap") found.push({ kind: "gap", text: "⋯" });
  });
  return found;
}
