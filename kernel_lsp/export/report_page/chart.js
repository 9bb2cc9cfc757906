// The best time by generation, against PyTorch's and the speed of light (roofline bound). Logarithmic: what matters is ratios.

const CHART = { width: 900, height: 300, left: 70, right: 0, top: 16, bottom: 36 };
const LABEL_HEIGHT = 14;
const WIDTHS = { least: 420, most: 900, tick: 28, sample: 34, character: 7 };

/** Width in pixels at the page's present width: one unit of the chart is one pixel, so that its text keeps its size. */
function chartWidth() {
  return Math.round(Math.min(WIDTHS.most, Math.max(WIDTHS.least, page.clientWidth)));
}

/** Best time of a correct candidate up to each generation: [{generation, us}]; generations without one repeat the last. */
function bestByGeneration(candidates) {
  const found = [];
  let best = Infinity;
  const last = Math.max(-1, ...candidates.map((candidate) => candidate.generation));
  for (let generation = 0; generation <= last; generation++) {
    for (const candidate of candidates) {
      const score = scoreOf(candidate);
      if (candidate.generation === generation && isRight(candidate) && score) best = Math.min(best, score.us);
    }
    if (best < Infinity) found.push({ generation, us: best });
  }
  return found;
}

/** The lines to beat: eager, compile and whatever else was timed, then the speed of light: [{name, us, kind}]. */
function references(report) {
  const found = new Map();
  const ofVerdicts = report.times ? [report.times] : report.candidates.flatMap((candidate) => candidate.verdicts.map((verdict) => verdict.times));
  const sources = [report.comparisons, ...ofVerdicts].map(Object.values);
  for (const comparisons of sources) {
    for (const comparison of comparisons.slice(0, 1)) {
      put(found, comparison.baseline_name, comparison.baseline);
      for (const baseline of comparison.baselines || []) {
        if (baseline.kind !== "missing") put(found, baseline.name, baseline.measurement || baseline.estimate);
      }
    }
    if (found.size) break;
  }
  const lines = [...found].map(([name, number]) => ({ name, us: number.time_us, kind: number.kind }));
  if (report.floor_us) lines.push({ name: "speed of light", us: report.floor_us, kind: "computed" });
  return lines;
}

function put(found, name, number) {
  if (!found.has(name)) found.set(name, number);
}

function chart(report, choose) {
  const best = bestByGeneration(report.candidates);
  const lines = references(report);
  const right = report.candidates.filter((candidate) => isRight(candidate) && scoreOf(candidate));
  const times = [...best.map((point) => point.us), ...lines.map((line) => line.us), ...right.map((candidate) => scoreOf(candidate).us)].filter((us) => us > 0);
  if (!right.length) return element("p", { class: "soft" }, "No candidate is correct yet.");
  CHART.width = chartWidth();
  CHART.right = WIDTHS.sample + WIDTHS.character * Math.max(12, ...lines.map((line) => labelOf(line).length));
  const scale = scales(times, report.n_generations);
  const labels = spread(labelsOf(best, lines, scale));
  const name = `Best time by generation: ${best.map((point) => `generation ${point.generation + 1} ${timeText(point.us)}`).join(", ")}. ${lines.map((line) => `${line.name} ${timeText(line.us)}`).join(", ")}.`;
  return element("svg", { width: CHART.width, height: CHART.height, viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": name },
    axes(scale, report.n_generations),
    lines.map((line) => element("line", { class: `rule ${kindOf(line.name)}`, x1: CHART.left, x2: CHART.width - CHART.right, y1: scale.y(line.us), y2: scale.y(line.us), "data-name": line.name, "data-us": line.us })),
    element("path", { class: "best", d: steps(best, scale), "data-best": JSON.stringify(best) }),
    right.map((candidate) => dot(candidate, report, scale, choose)),
    labels.map(legend));
}

/** A label in the text's colour behind a sample of its line. */
function legend(label) {
  const left = CHART.width - CHART.right + 8;
  return element("g", {},
    element("line", { class: label.class, x1: left, x2: left + 14, y1: label.y, y2: label.y }),
    element("text", { class: "label", x: left + 19, y: label.y + 4 }, label.text));
}

function kindOf(name) {
  return name === "speed of light" ? "floor" : name.includes("compile") || name.includes("inductor") ? "compile" : "eager";
}

function scales(times, nGenerations) {
  const [low, high] = [Math.log10(Math.min(...times) / 1.15), Math.log10(Math.max(...times) * 1.15)];
  const [width, height] = [CHART.width - CHART.left - CHART.right, CHART.height - CHART.top - CHART.bottom];
  return {
    low, high,
    x: (generation) => CHART.left + width * (generation + 0.5) / Math.max(nGenerations, 1),
    y: (us) => CHART.top + height * (high - Math.log10(us)) / (high - low),
  };
}

function axes(scale, nGenerations) {
  const [bottom, right] = [CHART.height - CHART.bottom, CHART.width - CHART.right];
  const marks = ticks(scale.low, scale.high);
  const every = Math.ceil(nGenerations * WIDTHS.tick / (right - CHART.left));
  return element("g", {},
    element("path", { class: "axis", d: `M${CHART.left},${CHART.top}V${bottom}H${right}` }),
    marks.map((us) => element("text", { x: CHART.left - 6, y: scale.y(us) + 4, "text-anchor": "end" }, timeText(us))),
    Array.from({ length: nGenerations }, (_, generation) => generation).filter((generation) => generation % every === 0)
      .map((generation) => element("text", { x: scale.x(generation), y: bottom + 16, "text-anchor": "middle" }, String(generation + 1))),
    element("text", { x: (CHART.left + right) / 2, y: CHART.height - 4, "text-anchor": "middle" }, "generation"));
}

function ticks(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const digit of [1, 2, 5]) {
      const exponent = power + Math.log10(digit);
      if (exponent >= low && exponent <= high) found.push(digit * 10 ** power);
    }
  }
  return found;
}

function steps(best, scale) {
  return best.map((point, index) => `${index ? "H" : "M"}${scale.x(point.generation)}${index ? "V" : ","}${scale.y(point.us)}`).join("");
}

function dot(candidate, report, scale, choose) {
  const score = scoreOf(candidate);
  const isWinner = candidate.candidate_id === report.winner_id;
  return element("circle", { class: isWinner ? "dot winner" : "dot", r: isWinner ? 5 : 3.5, cx: scale.x(candidate.generation), cy: scale.y(score.us), onclick: () => choose(candidate.candidate_id) },
    element("title", {}, `${candidate.candidate_id}: ${timeText(score.us)} (${score.kind})`));
}

function labelOf({ name, us, kind }) {
  return `${name} ${timeText(us)}${kind === "computed" ? "" : ` (${kind})`}`;
}

function labelsOf(best, lines, scale) {
  const last = best[best.length - 1];
  const found = lines.map((line) => ({ text: labelOf(line), class: `sample rule ${kindOf(line.name)}`, y: scale.y(line.us) }));
  found.push({ text: `best ${timeText(last.us)}`, class: "sample best", y: scale.y(last.us) });
  return found;
}

/** Moved apart where they would cover each other. */
function spread(labels) {
  labels.sort((a, b) => a.y - b.y);
  for (let index = 1; index < labels.length; index++) {
    labels[index].y = Math.max(labels[index].y, labels[index - 1].y + LABEL_HEIGHT);
  }
  const over = labels.length ? labels[labels.length - 1].y - (CHART.height - CHART.bottom) : 0;
  for (let index = labels.length - 1, limit = CHART.height - CHART.bottom; over > 0 && index >= 0; index--, limit -= LABEL_HEIGHT) {
    labels[index].y = Math.min(labels[index].y, limit);
  }
  return labels;
}
