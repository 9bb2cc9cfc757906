// The page: draws a report, and again, when the editor that shows it sends more, what of it has changed.

const editor = typeof acquireVsCodeApi === "function" ? acquireVsCodeApi() : null;
const page = document.getElementById("page");
const COLUMNS = [
  ["candidate", (candidate) => candidate.candidate_id],
  ["generation", (candidate) => candidate.generation],
  ["verdicts", (candidate) => (lastVerdict(candidate) ? lastVerdict(candidate).outcome.kind : "")],
  ["time", (candidate) => (scoreOf(candidate) && isRight(candidate) ? scoreOf(candidate).us : Infinity)],
  ["proposer", (candidate) => candidate.proposer],
  ["description", (candidate) => candidate.description],
];
const state = { report: JSON.parse(document.getElementById("summary").textContent), isWhole: false, chosenId: null, tab: "code", sort: 3, descending: false, review: null, stage: "", frame: 0, serial: 0, isFirst: true };
const rows = new Keyed(candidateRow);
const FIRST_ROWS = 20; // as many as a screen shows under the chart

function draw() {
  state.frame = 0;
  const kept = focusKept();
  const report = state.report;
  const nRight = report.candidates.filter(isRight).length;
  const nJudged = report.candidates.filter(lastVerdict).length;
  if (!report.candidates.some((candidate) => candidate.candidate_id === state.chosenId)) state.chosenId = report.winner_id || bestId(report);
  part("head", [state.serial, report.status, state.stage], () => header(report));
  part("review", [state.review && state.review.label], () => [reviewBar()]);
  part("result", [state.serial, report.status, report.winner_id, nRight, nJudged, report.candidates.length], () => result(report));
  part("chart", [state.serial, report.winner_id, nRight, chartWidth()], () => [element("h2", {}, "Best time by generation"), chart(report, choose)]);
  part("candidates", [state.sort, state.descending], () => tableFrame());
  fillTable(report);
  if (state.isFirst) {
    // What is above comes first: a frame with it is worth more than everything one frame later. The timer starts in
    // the frame that shows it, and so ends after it.
    state.isFirst = false;
    requestAnimationFrame(() => setTimeout(whenParsed, 0, becomeWhole));
  } else if (state.isWhole) {
    drawBelow(report);
    if (!performance.getEntriesByName("whole").length) performance.mark("whole");
  }
  restoreFocus(kept);
}

/** The whole report stands after the script: its texts hold up no paint. */
function whenParsed(then) {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", then, { once: true });
  else then();
}

/** From the summary to the report, which can be followed only then: an editor keeps its messages until we are ready. */
function becomeWhole() {
  Object.assign(state, { report: JSON.parse(document.getElementById("data").textContent), isWhole: true });
  draw();
  window.addEventListener("message", receive);
  window.addEventListener("resize", drawSoon);
  if (editor) editor.postMessage({ type: "ready" });
}

function drawBelow(report) {
  part("lineage", [], () => [element("h2", {}, "Lineage"), lineageFrame()]);
  fillLineage(page.querySelector('[role="tree"]'), report, state.chosenId, choose);
  const chosen = report.candidates.find((candidate) => candidate.candidate_id === state.chosenId);
  part("details", [state.chosenId, state.tab, chosen && [chosen.text.length, shownOf(chosen)]], () => details(report));
}

/** At most once per frame, however many events come. */
function drawSoon() {
  if (!state.frame) state.frame = requestAnimationFrame(draw);
}

function bestId(report) {
  const right = report.candidates.filter((candidate) => isRight(candidate) && scoreOf(candidate));
  right.sort((a, b) => scoreOf(a).us - scoreOf(b).us);
  return (right[0] || report.candidates[0] || { candidate_id: null }).candidate_id;
}

function choose(id) {
  state.chosenId = id;
  draw();
}

// --- the head and the result

function header(report) {
  const where = [report.device && `on ${report.device}`, report.target_gpu && `times for ${report.target_gpu}`].filter(Boolean).join(", ");
  return [
    element("h1", {}, report.target),
    element("p", { class: "soft" }, `Run ${report.run_id}, ${report.status}, started ${report.started.slice(0, 19).replace("T", " ")}${where ? `; ${where}` : ""}.`),
    report.summary ? element("p", {}, report.summary) : "",
    state.stage ? element("p", { role: "status" }, `Now: ${state.stage}.`) : "",
  ];
}

function reviewBar() {
  if (!state.review) return "";
  const say = (type) => () => editor.postMessage({ type });
  const isAdvised = (state.report.recommendation?.action ?? "apply") === "apply";
  const button = (type, label, isMain) => element("button", { class: isMain ? "main" : "", "data-key": type, onclick: say(type) }, label);
  return element("div", { class: "bar", role: "group", "aria-label": "Review of the result" },
    element("span", { class: "grow" }, state.review.label),
    button("apply", isAdvised ? "Apply" : "Apply anyway", isAdvised),
    button("diff", "Open the diff", false),
    button("discard", "Discard", !isAdvised));
}

function result(report) {
  const winner = report.candidates.find((candidate) => candidate.candidate_id === report.winner_id);
  const facts = Object.entries(report.comparisons).map(([name, comparison]) => fact(`${significant(speedupOf(comparison))}×`, `${name} vs ${comparison.baseline_name}, ${comparison.ours.kind}`));
  const judged = report.candidates.filter(lastVerdict);
  const nOpen = report.candidates.length - judged.length;
  facts.push(fact(`${judged.filter(isRight).length}/${judged.length}`, `candidates correct${nOpen ? `, ${nOpen} not evaluated` : ""}`));
  if (report.n_model_calls) facts.push(fact(costText(report.cost_usd), `${report.n_model_calls} calls of models`));
  const advice = report.recommendation;
  return [
    advice && advice.headline ? element("p", { class: "advice" }, element("b", {}, advice.headline), ` (${advice.kind}): ${[advice.why, advice.remedy].filter(Boolean).join("; what would help: ")}.`) : "",
    element("div", { class: "facts" }, facts),
    report.reason ? element("p", {}, winner ? `Winner: ${report.reason}.` : report.reason) : "",
    report.stopped ? element("p", {}, `Ended early: ${report.stopped}.`) : "",
    ...report.library_steps.map((step) => element("p", {}, `Library step: ${step} (a vendor library, not our kernel).`)),
    ...(winner ? evidence(report, winner) : []),
    ...report.notes.map((note) => element("p", { class: "soft" }, note)),
  ];
}

function fact(value, label) {
  return element("div", { class: "fact" }, element("b", {}, value), element("span", { class: "soft" }, label));
}

function evidence(report, winner) {
  const verdict = deepest(winner);
  const rows = Object.entries(report.comparisons).flatMap(([name, comparison]) => [
    row([name, numberCell(comparison.ours), shapesText(comparison.ours.shapes)]),
    row([`${name}: ${comparison.baseline_name}`, numberCell(comparison.baseline), intervalText(comparison.ratio)]),
    ...(comparison.baselines || []).filter((each) => each.name !== comparison.baseline_name).map((each) => row([`${name}: ${each.name}`, each.reason || numberCell(each.measurement || each.estimate), each.kind === "timed" ? intervalText(each.ratio) : ""])),
  ]);
  return [
    element("h2", {}, "Evidence"),
    element("p", {}, `${outcomeText(verdict.outcome)} on the ${verdict.device}.`),
    rows.length ? element("div", { class: "scroll" }, element("table", {}, head(["", "time (interval)", ""]), element("tbody", {}, rows))) : "",
    element("details", { "data-key": "cases" }, element("summary", { "data-key": "cases-summary" }, `Error vs tolerance in ${nCases(verdict.outcome)} cases`), lazily(() => caseTable(casesOf(winner.candidate_id)))),
  ];
}

/** The date stays in one piece. */
function numberCell(number) {
  return [numberText(number).slice(0, -number.date.length), element("span", { class: "whole" }, number.date)];
}

function intervalText(ratio) {
  return ratio ? `ours is ${significant(ratio.value)}× as fast [${significant(ratio.low)}, ${significant(ratio.high)}]: ${ratio.claim}` : "";
}

function deepest(candidate) {
  return [...candidate.verdicts].reverse().find((each) => each.depth === "full") || lastVerdict(candidate);
}

/** Of the report as it is by now: what was drawn of its summary knows no cases. */
function casesOf(id) {
  const candidate = state.report.candidates.find((each) => each.candidate_id === id);
  return (candidate && deepest(candidate).outcome.cases) || [];
}

function caseTable(cases) {
  const rows = cases.flatMap((each) => each.errors.map((error) => row([
    each.operation, each.family, shapesText(each.shapes), each.n_blocks_run < each.n_blocks ? `${each.n_blocks_run} of ${each.n_blocks} blocks` : "whole", error.output,
    `${error.relative_l2.toExponential(1)} of ${error.relative_l2_budget.toExponential(1)}`, `${error.max_error.toExponential(1)} of ${error.max_error_budget.toExponential(1)}`,
  ])));
  return element("div", { class: "scroll" }, element("table", {}, head(["operation", "inputs", "shapes", "run", "output", "relative error", "largest error"]), element("tbody", {}, rows)));
}

function head(names) {
  return element("thead", {}, element("tr", {}, names.map((name) => element("th", { scope: "col" }, name))));
}

function row(cells) {
  return element("tr", {}, cells.map((cell) => element("td", {}, cell)));
}

// --- the candidates

function tableFrame() {
  const heads = COLUMNS.map(([name], index) => element("th", { scope: "col", class: name === "time" ? "number" : null, "aria-sort": state.sort === index ? (state.descending ? "descending" : "ascending") : null },
    element("button", { "data-key": `sort-${name}`, onclick: () => sortBy(index) }, name)));
  return [
    element("h2", { id: "n-candidates" }),
    element("div", { class: "scroll" }, element("table", { "aria-label": "Candidates" }, element("thead", {}, element("tr", {}, heads)), element("tbody", { id: "candidates" }))),
  ];
}

/** Rows that say what they said stay: with twenty events a second a table of hundreds is not built anew each time. */
function fillTable(report) {
  const [, key] = COLUMNS[state.sort];
  const sign = state.descending ? -1 : 1;
  const sorted = [...report.candidates].sort((a, b) => (key(a) < key(b) ? -sign : key(a) > key(b) ? sign : 0));
  const made = sorted.slice(0, state.isFirst ? FIRST_ROWS : undefined).map((candidate) => {
    const id = candidate.candidate_id;
    return rows.of(id, JSON.stringify([shownOf(candidate), id === state.chosenId, id === report.winner_id]), candidate, report);
  });
  rows.keep(new Set(sorted.map((candidate) => candidate.candidate_id)));
  place(document.getElementById("candidates"), made);
  setText(document.getElementById("n-candidates"), `Candidates (${sorted.length})`);
}

/** Everything of a candidate that is shown outside of its details. */
function shownOf(candidate) {
  return [candidate.generation, candidate.proposer, candidate.operator, candidate.description, scoreOf(candidate), candidate.verdicts.map((verdict) => [verdict.depth, verdict.device, outcomeText(verdict.outcome), verdict.outcome.kind])];
}

function sortBy(index) {
  state.descending = state.sort === index && !state.descending;
  state.sort = index;
  draw();
}

function candidateRow(candidate, report) {
  const score = scoreOf(candidate);
  const time = score ? `${timeText(score.us)} ${score.kind}` : "–";
  const id = candidate.candidate_id;
  const open = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(id);
  };
  return element("tr", { tabindex: "0", "aria-selected": String(id === state.chosenId), "data-key": `row-${id}`, onclick: open, onkeydown: open },
    element("td", {}, element("code", {}, id.slice(0, 8)), id === report.winner_id ? " ★" : ""),
    element("td", {}, String(candidate.generation + 1)),
    element("td", {}, chain(candidate)),
    element("td", { class: "number" }, time),
    element("td", {}, [candidate.proposer, candidate.operator].filter(Boolean).join(", ")),
    element("td", {}, candidate.description));
}

function chain(candidate) {
  if (!candidate.verdicts.length) return element("span", { class: "soft" }, "being evaluated");
  return element("span", { class: "chain" }, candidate.verdicts.map((verdict) => element("span", { class: verdict.outcome.kind === "correct" ? "good" : "bad", title: `${outcomeText(verdict.outcome)} (${verdict.device})` },
    `${verdict.outcome.kind === "correct" ? "✓" : "✗"} ${verdict.depth}: ${verdict.outcome.kind.replaceAll("_", " ")}`)));
}

// --- one candidate

function details(report) {
  const candidate = report.candidates.find((each) => each.candidate_id === state.chosenId);
  if (!candidate) return [];
  const verdict = lastVerdict(candidate);
  const findings = verdict ? [...(verdict.outcome.findings || []), ...verdict.findings] : [];
  const parent = report.candidates.find((each) => candidate.parents.includes(each.candidate_id));
  const tabs = { code: "Code", diff: "Difference from its parent", facts: "Facts" };
  return [
    element("h2", { id: "chosen" }, `Candidate ${candidate.candidate_id.slice(0, 8)}`),
    verdict ? element("p", {}, `${outcomeText(verdict.outcome)}.`) : "",
    element("div", { role: "tablist", "aria-labelledby": "chosen" }, Object.entries(tabs).map(([name, title]) => element("button", { role: "tab", "aria-selected": String(state.tab === name), "data-key": `tab-${name}`, onclick: () => { state.tab = name; draw(); } }, title))),
    element("div", { role: "tabpanel" }, panel(candidate, parent, verdict, findings)),
  ];
}

function panel(candidate, parent, verdict, findings) {
  if (state.tab === "diff") return parent && parent.text && candidate.text ? diffListing(parent.text, candidate.text, "Difference from its parent") : element("p", { class: "soft" }, "It has no parent in this run.");
  if (state.tab === "facts") return facts(candidate, verdict);
  return candidate.text ? codeListing(candidate.text, findings) : element("p", { class: "soft" }, "Its text comes when the generation is done.");
}

function facts(candidate, verdict) {
  const rows = Object.entries(candidate.schedule).map(([name, value]) => row([name, String(value)]));
  for (const kernel of verdict ? verdict.kernels : []) {
    rows.push(row([kernel.kernel, `${kernel.n_registers} registers, ${kernel.spill_store_bytes + kernel.spill_load_bytes} B spilled, ${kernel.shared_bytes} B shared`]));
  }
  const number = verdict && (verdict.measurement || verdict.estimate);
  if (number) rows.push(row(["time", numberText(number)]));
  for (const note of verdict ? verdict.notes : []) rows.push(row(["note", note]));
  return element("table", {}, element("tbody", {}, rows));
}

// --- what happens to it

/** What had the focus and what was open, by key: the elements themselves may be drawn anew. */
function focusKept() {
  const active = document.activeElement;
  const item = active && active.closest && active.closest('[role="treeitem"]');
  return {
    active,
    key: active && active.dataset ? active.dataset.key : undefined,
    treeId: item ? item.dataset.id : undefined,
    open: [...page.querySelectorAll("details[open]")].map((each) => each.dataset.key),
  };
}

function restoreFocus(kept) {
  for (const key of kept.open) page.querySelector(`details[data-key="${key}"]`)?.setAttribute("open", "");
  if (kept.active === document.activeElement) return;
  const found = kept.treeId ? page.querySelector(`[role="treeitem"][data-id="${kept.treeId}"]`) : kept.key ? page.querySelector(`[data-key="${kept.key}"]`) : null;
  if (found) found.focus({ preventScroll: true });
}

/** One event of the run. What it leaves out, texts and full verdicts, comes with the next whole report. */
function hear(event) {
  const candidates = state.report.candidates;
  const known = candidates.find((candidate) => candidate.candidate_id === event.candidate_id);
  state.stage = event.kind === "stage_started" ? event.message : "";
  if (event.kind === "candidate_proposed" && !known) {
    candidates.push({ candidate_id: event.candidate_id, generation: event.generation, proposer: "", operator: "", description: event.description, parents: [], schedule: {}, text: "", verdicts: [] });
  } else if (event.kind === "candidate_evaluated" && known && !known.verdicts.some((verdict) => verdict.depth === event.depth)) {
    known.verdicts.push(brief(event));
  } else if (event.kind === "run_finished") {
    Object.assign(state.report, { status: "finished", winner_id: event.candidate_id, reason: event.reason, comparisons: event.comparisons, recommendation: event.recommendation, library_steps: event.library_steps });
  }
}

function brief(event) {
  const number = event.score_us === null ? null : { time_us: event.score_us, kind: event.score_kind };
  return { depth: event.depth, device: state.report.device, outcome: { kind: event.outcome, message: event.message }, findings: [], kernels: [], times: {}, notes: [], estimate: null, measurement: null, [event.score_kind === "measured" ? "measurement" : "estimate"]: number };
}

function receive({ data }) {
  if (data.type === "report") Object.assign(state, { report: data.report, serial: state.serial + 1 });
  else if (data.type === "event") hear(data.event);
  else if (data.type === "review") state.review = data.review;
  else if (data.type === "choose") state.chosenId = data.candidate;
  else return;
  drawSoon();
}

draw();
