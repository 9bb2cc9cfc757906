// A new user's journeys in a project without shapes: the first click, a recorded run, other settings and modes, CUDA files.
import assert from "node:assert/strict";
import { loadavg } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { stepsOf } from "./steps.mjs";
import { ROOT, Workbench, crowding } from "./workbench.mjs";

const FIRST_CLICKS = 4;
const FIRST_MS = 120_000;
const DEFAULTS = { "kernelLsp.device": undefined, "kernelLsp.generations": undefined, "kernelLsp.proposals": undefined };
const AT_ITS_START = { position: { x: 40, y: 8 } }; // a click in the middle of a long line scrolls sideways
const PROJECT = join(ROOT, "tests", "editors", "project");
const FILES = ["model.py", "train.py", "plain.cu", "extension.cu"];
let workbench;
let page;
let printed;
const step = stepsOf(() => workbench, /^(a plain|a torch|a recorded|both modes|what was used)/);

before(async () => {
  workbench = await Workbench.open({
    name: "journeys",
    files: Object.fromEntries(FILES.map((name) => [name, join(PROJECT, name)])),
    settings: DEFAULTS,
  });
  page = workbench.page;
  printed = workbench.python("train.py").stdout;
});

after(() => workbench?.close());

step("with default settings, the first click in an unknown project ends in a used operator", async () => {
  await workbench.openFile("model.py");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  const started = Date.now();
  const marks = [];
  const mark = (what) => marks.push(`${what} ${((Date.now() - started) / 1000).toFixed(0)} s`);
  await workbench.click(workbench.lens("Optimize to CUDA").first());
  const prompt = workbench.notification(/Standardize declares no shapes/);
  await prompt.waitFor();
  mark("prompt");
  await workbench.shot("01-prompt");
  await workbench.click(prompt.getByRole("button", { name: "Use these and optimize" }));
  const { apply } = await workbench.result();
  mark("result");
  await workbench.shot("02-result");
  await workbench.click(apply);
  await workbench.written("kernels/standardize.cu", "kernels/standardize.py");
  mark("files");
  await workbench.shot("03-applied");
  await page.locator(".tab.active", { hasText: "Use standardize at 2 call sites in 1 file" }).waitFor();
  await line("use_standardize(Standardize(features))").waitFor();
  mark("diff of the call sites");
  assert.doesNotMatch(workbench.text("model.py"), /use_standardize/);
  await workbench.click(applyOfTheDiff());
  await workbench.until("the operator in the model", () => /use_standardize\(Standardize\(features, eps=1e-3\)\)/.test(workbench.text("model.py")));
  const took = Date.now() - started;
  console.log(`first click to a used operator: ${workbench.nClicks} clicks, ${(took / 1000).toFixed(0)} s (${marks.join(", ")}; load ${loadavg()[0].toFixed(0)})`);
  await workbench.shot("04-used");
  workbench.writeSettings({ "kernelLsp.generations": 1, "kernelLsp.proposals": 2 }); // later runs are short
  assert.ok(workbench.nClicks <= FIRST_CLICKS && took <= FIRST_MS * crowding(), `${workbench.nClicks} clicks, ${took} ms`);
});

step("the program computes the same bits: with another eps, in training and in eval mode", () => {
  const { status, stdout, stderr } = workbench.python("train.py");
  assert.deepEqual([status, stdout], [0, printed], stderr);
  assert.equal(stderr.match(/readings is not a non-empty f32\[B, 1024\]/g)?.length, 1, stderr);
  assert.doesNotMatch(stderr, /eps/); // an argument of the kernels
});

step("a recorded run ranks the targets, and the first is optimized from there", async () => {
  await workbench.openFile("train.py");
  await workbench.run("kernel-lsp: Record a Run");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: "python train.py" }).click();
  await workbench.written(".kernel-lsp/recorded.json");
  await workbench.run("View: Hide Panel");
  await workbench.openKernelsView();
  const first = workbench.row(/^GatedBlock.*% of a step/);
  await first.waitFor();
  await workbench.row(/^GPU: missing/).waitFor();
  await workbench.shot("05-hot-spots");
  await first.hover();
  await first.getByRole("button", { name: "Optimize to CUDA" }).click();
  const { panel } = await workbench.result();
  assert.match(await panel.locator("h1").innerText(), /GatedBlock/);
  await workbench.shot("06-review");
  await panel.getByRole("button", { name: "Open the diff" }).click();
  await line("// kernel-lsp: 1").waitFor();
  await workbench.shot("07-diff");
});

step("both modes of the recorded run are in the hover, and its share in the lens", async () => {
  await workbench.openFile("model.py");
  await workbench.lens(/Optimize to CUDA \| [\d.]+ % of a step/).first().waitFor();
  const text = await workbench.hover("GatedBlock", /Recorded/);
  assert.match(text, /training/);
  assert.match(text, /eval/);
  await workbench.shot("08-recorded");
});

step("what was used is taken back, as one diff", async () => {
  await workbench.openFile("model.py");
  await goTo("use_standardize(Standardize(features))");
  await workbench.act("Revert to PyTorch in all files: standardize");
  await page.locator(".tab.active", { hasText: "Revert standardize at 2 call sites in 1 file" }).waitFor();
  await line("self.before = Standardize(features)").waitFor();
  await workbench.shot("09-revert");
  await applyOfTheDiff().click();
  await workbench.until("PyTorch in the model", () => !workbench.text("model.py").includes("use_standardize"));
});

step("a plain CUDA file has its findings with their rule's page, its registers, and on save the compiler's errors", async () => {
  await workbench.openFile("plain.cu");
  await finding(/missing bounds check on this index/);
  await goTo("out[at] = fminf");
  await page.keyboard.press("End");
  await page.keyboard.press("Backspace");
  await page.keyboard.press("Control+S");
  await finding(/expected a ";"/);
  await workbench.shot("10-plain-error");
  await page.keyboard.type(";");
  await page.keyboard.press("Control+S");
  await workbench.lens(/\d+ registers/).first().waitFor();
  await workbench.shot("11-plain");
  await workbench.act(/Explain this finding: KL201/);
  await page.locator(".tab.active[data-resource-name='cuda.md']").first().waitFor();
  await line("## KL201").waitFor();
});

step("a plain CUDA file's PTX and SASS stand beside and follow the cursor", async () => {
  await workbench.openFile("plain.cu");
  await goTo("out[at] = fminf");
  await workbench.run("kernel-lsp: Show PTX");
  await line(/max\.f32/).waitFor();
  await goTo("if (threadIdx.x == 0) sums");
  await line(/ld\.shared\.f32/).waitFor();
  await page.locator(".editor-group-container:not(.active) .cdr.wordHighlightStrong, .editor-group-container:not(.active) [class*='ced-']").first().waitFor({ state: "attached" });
  await workbench.shot("12-ptx");
  await workbench.run("kernel-lsp: Show SASS");
  await line(/\bR\d+|SASS\sneeds\snvdisasm/).waitFor();
  await workbench.shot("13-sass");
  await workbench.run("View: Close All Editors");
});

step("a plain CUDA file gets its launch plan from a quick fix", async () => {
  await workbench.openFile("plain.cu");
  await workbench.act("Add a launch plan");
  await line("// launch: sum_readings<<<ceil_div(count, 128), 128>>>(out, sums, count)").waitFor();
  await workbench.shot("14-plan");
});

step("a torch extension has its findings", async () => {
  await workbench.openFile("extension.cu");
  for (const text of [/unchecked kernel launch/, /launch on the default stream/, /contiguous/]) await finding(text);
  await workbench.shot("15-extension");
});

// --- below

/** A row of the Problems view. */
async function finding(text) {
  await workbench.run("Problems: Focus on Problems View");
  await page.locator(".markers-panel .monaco-list-row", { hasText: text }).first().waitFor();
  await workbench.run("View: Focus Active Editor Group");
}

/** In the title of the diff of an edit under review. */
function applyOfTheDiff() {
  return page.locator(".editor-group-container.active .editor-actions").getByRole("button", { name: /^Apply the Edit/ });
}

async function goTo(text) {
  await line(text).click(AT_ITS_START);
}

function line(text) {
  return page.locator(".view-line:visible", { hasText: text }).first();
}
