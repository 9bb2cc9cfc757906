"use strict";
performance.mark("began"); // in an editor the page's document is older than what is in it
// Numbers in words, and elements from words. Text goes into text nodes alone, so nothing in a run can become markup.

function element(name, attributes, ...children) {
  const isShape = element.shapes.has(name);
  const made = isShape ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== "") made.append(child);
  }
  return made;
}
element.shapes = new Set(["svg", "path", "line", "circle", "text", "g", "title", "desc"]);

function significant(value) {
  return Number(value.toPrecision(3)).toString();
}

function timeText(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1e3) return `${significant(us)} µs`;
  return us < 1e6 ? `${significant(us / 1e3)} ms` : `${significant(us / 1e6)} s`;
}

/** A time with its interval, kind, GPU and date: a number without them says nothing. */
function numberText(number) {
  const interval = `[${significant(number.low_us)}, ${significant(number.high_us)}]`;
  return `${timeText(number.time_us)} ${interval}, ${number.kind} ${number.kind === "measured" ? "on" : "for"} ${number.gpu}, ${number.date}`;
}

function costText(usd) {
  return usd === null || usd === undefined ? "no price known" : usd === 0 ? "$0" : `$${usd.toFixed(usd < 0.1 ? 4 : 2)}`;
}

function shapesText(shapes) {
  return Object.entries(shapes).map(([name, sizes]) => `${name}[${sizes.join(", ")}]`).join(" ");
}

/** What the search minimizes: the measured time where there is one, else the estimate; of the deepest verdict. */
function scoreOf(candidate) {
  for (const verdict of [...candidate.verdicts].reverse()) {
    const number = verdict.measurement || verdict.estimate;
    if (number) return { us: number.time_us, kind: number.kind };
  }
  return null;
}

function lastVerdict(candidate) {
  return candidate.verdicts[candidate.verdicts.length - 1] || null;
}

function isRight(candidate) {
  const verdict = lastVerdict(candidate);
  return verdict !== null && verdict.outcome.kind === "correct";
}

function outcomeText(outcome) {
  if (outcome.kind === "correct") return nCases(outcome) ? `passed ${nCases(outcome)} test cases` : "correct";
  if (outcome.kind === "build_failed") return outcome.findings && outcome.findings.length ? outcome.findings[0].message : outcome.message || "does not compile";
  if (outcome.kind === "unsupported") return `could not be checked: ${outcome.message}`;
  return outcome.message || outcome.kind.replaceAll("_", " ");
}

/** A summary has their number alone. */
function nCases(outcome) {
  return outcome.cases ? outcome.cases.length : outcome.n_cases || 0;
}

function speedupOf(comparison) {
  return comparison.ratio ? comparison.ratio.value : comparison.baseline.time_us / comparison.ours.time_us;
}
