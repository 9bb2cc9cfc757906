// Someone who comes back: a run whose window was closed is resumed; estimates for another GPU; a notebook's cells.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before } from "node:test";
import { assertLegible } from "./legible.mjs";
import { stepsOf } from "./steps.mjs";
import { ROOT, Workbench } from "./workbench.mjs";

const CELL = ["import torch\n", "\n", "# kernel-lsp: x=f32[512, 256]\n", "def doubled(x):\n", "    return torch.relu(x) * 2\n"];
let workbench;
let page;
const step = stepsOf(() => workbench, /^(the hover|a notebook)/);

before(async () => {
  workbench = await Workbench.open({
    name: "return",
    files: { "rms_norm.py": join(ROOT, "examples", "rms_norm.py") },
    settings: { "kernelLsp.generations": 2, "kernelLsp.proposals": 8, "workbench.colorTheme": "Default Dark Modern" },
    prepare: (folder) => void writeFileSync(join(folder, "project", "cells.ipynb"), JSON.stringify(notebook())),
  });
  page = workbench.page;
});

after(() => workbench?.close());

step("the hover names the GPU that is selected, with its own numbers", async () => {
  await workbench.openFile("rms_norm.py");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  const first = await estimate(/on H200/);
  await workbench.run("kernel-lsp: Select Target GPU");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: /^L4$/ }).first().click();
  await workbench.until("the setting", () => /"kernelLsp.targetGpu": *"L4"/.test(readFileSync(join(workbench.folder, "user", "User", "settings.json"), "utf8")));
  const second = await estimate(/on L4/);
  await workbench.shot("01-gpu");
  assert.notEqual(first, second);
});

step("a run whose window is closed is there when it is opened again, and is resumed to its end", async () => {
  await workbench.openKernelsView(); // first: on a busy machine the run may end while the view opens
  await workbench.lens("Optimize to CUDA").first().click();
  await workbench.row(/Optimize RMSNorm.*[1-9]\d? %/).waitFor();
  await page.close({ runBeforeUnload: false });
  await workbench.until("the run's processes are gone", () => workbench.processes("kernel_lsp.engine.runner").length === 0);
  await workbench.openWindow();
  page = workbench.page;
  await workbench.lens(/^Resume "/).first().waitFor();
  await workbench.openKernelsView();
  await workbench.notification(/RMSNorm was interrupted/).waitFor();
  await workbench.row(/rms_norm\.py::RMSNorm.*interrupted/).waitFor();
  await workbench.shot("02-interrupted");
  await workbench.startRun(/^Resume "/);
  const { panel } = await workbench.result();
  await panel.locator("path.best").waitFor({ state: "attached" });
  await assertLegible(panel.locator("body"));
  await workbench.shot("03-resumed");
});

step("a notebook's cell has its lens, and its function becomes a kernel beside the notebook", async () => {
  await workbench.run("View: Close All Editors");
  await workbench.openFile("cells.ipynb");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  await workbench.shot("04-notebook");
  const before = readFileSync(join(workbench.workspace, "cells.ipynb"), "utf8");
  await workbench.lens("Optimize to CUDA").first().click();
  const { panel, apply } = await workbench.result();
  assert.match(await panel.locator("h1").innerText(), /doubled/);
  await apply.click();
  await workbench.written("kernels/doubled.cu", "kernels/doubled.py");
  assert.equal(readFileSync(join(workbench.workspace, "cells.ipynb"), "utf8"), before);
  await workbench.shot("05-notebook-applied");
});

// --- below

/** The first time in the hover over the target, once it says this. */
async function estimate(wanted) {
  return /[\d.]+ [um]?s/.exec(await workbench.hover("RMSNorm", wanted))[0];
}

function notebook() {
  const cell = { cell_type: "code", execution_count: null, id: "a", metadata: {}, outputs: [], source: CELL };
  return { cells: [cell], metadata: { language_info: { name: "python" } }, nbformat: 4, nbformat_minor: 5 };
}
