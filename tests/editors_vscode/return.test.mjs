// Someone who comes back: a run whose window was closed is resumed; estimates for another GPU; a notebook's cells.
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before } from "node:test";
import { stepsOf } from "./steps.mjs";
import { ROOT, Workbench } from "./workbench.mjs";

const RUN_MS = 180_000;
const AWAY_MS = 3000;
const CELL = ["import torch\n", "\n", "# kernel-lsp: x=f32[512, 256]\n", "def doubled(x):\n", "    return torch.relu(x) * 2\n"];
let workbench;
let page;
const step = stepsOf(() => workbench, /^(the hover|a notebook)/);

before(async () => {
  workbench = await Workbench.open({
    name: "return",
    files: { "rms_norm.py": join(ROOT, "examples", "rms_norm.py") },
    settings: { "kernelLsp.generations": 3, "kernelLsp.proposals": 8 },
    prepare: (folder) => void writeFileSync(join(folder, "project", "cells.ipynb"), JSON.stringify(notebook())),
  });
  page = workbench.page;
});

after(() => workbench?.close());

step("the hover names the GPU that is selected, with its own numbers", async () => {
  await workbench.openFile("rms_norm.py");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  const [first] = await estimates(/on H200/);
  await workbench.run("kernel-lsp: Select Target GPU");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: /^L4$/ }).first().click();
  await workbench.until("the setting", () => /"kernelLsp.targetGpu": *"L4"/.test(readFileSync(join(workbench.folder, "user", "User", "settings.json"), "utf8")));
  const [second] = await estimates(/on L4/);
  await workbench.shot("01-gpu");
  assert.notEqual(first, second);
});

step("a run whose window is closed is there when it is opened again, and is resumed to its end", async () => {
  await workbench.lens("Optimize to CUDA").first().click();
  await page.locator(".action-item a.action-label[aria-label='Kernels']").click();
  await page.locator(".monaco-list-row", { hasText: /Optimize RMSNorm.*[1-9]\d? %/ }).first().waitFor();
  await page.close({ runBeforeUnload: false });
  await workbench.until("the run's processes are gone", () => workbench.processes("kernel_lsp.engine.runner").length === 0);
  await new Promise((resolve) => setTimeout(resolve, AWAY_MS));
  await workbench.openWindow();
  page = workbench.page;
  await workbench.lens(/^Resume "/).first().waitFor();
  await page.locator(".action-item a.action-label[aria-label='Kernels']").click();
  await page.locator(".monaco-list-row", { hasText: /rms_norm\.py::RMSNorm.*interrupted/ }).first().waitFor();
  await workbench.shot("02-interrupted");
  await workbench.lens(/^Resume "/).first().click();
  await workbench.until("the panel with Apply", () => workbench.panel().getByRole("button", { name: "Apply" }).isVisible().catch(() => false), RUN_MS);
  await workbench.shot("03-resumed");
});

step("a notebook's cell has its lens, and its function becomes a kernel beside the notebook", async () => {
  await workbench.run("View: Close All Editors");
  await workbench.openFile("cells.ipynb");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  await workbench.shot("04-notebook");
  const before = readFileSync(join(workbench.workspace, "cells.ipynb"), "utf8");
  await workbench.lens("Optimize to CUDA").first().click();
  await workbench.until("the panel with Apply", () => workbench.panel().getByRole("button", { name: "Apply" }).isVisible().catch(() => false), RUN_MS);
  assert.match(await workbench.panel().locator("h1").innerText(), /doubled/);
  await workbench.panel().getByRole("button", { name: "Apply" }).click();
  await workbench.until("both files", () => ["doubled.cu", "doubled.py"].every((name) => isWritten(join(workbench.workspace, "kernels", name))));
  assert.equal(readFileSync(join(workbench.workspace, "cells.ipynb"), "utf8"), before);
  await workbench.shot("05-notebook-applied");
});

// --- below

/** Applying makes the file, then saves what is in it. */
function isWritten(path) {
  return existsSync(path) && readFileSync(path).length > 0;
}

/** The times in the hover over the target, once it says this. */
async function estimates(wanted) {
  const name = page.locator(".view-line", { hasText: "class RMSNorm" }).locator("span", { hasText: /^RMSNorm$/ }).last();
  return workbench.until(`a hover that says ${wanted}`, async () => {
    await page.mouse.move(700, 700);
    await page.waitForTimeout(600);
    await name.hover();
    await page.waitForTimeout(1200);
    const text = (await page.locator(".monaco-hover:visible").allInnerTexts()).join(" ");
    return wanted.test(text) ? /[\d.]+ [um]?s/.exec(text) : undefined;
  });
}

function notebook() {
  const cell = { cell_type: "code", execution_count: null, id: "a", metadata: {}, outputs: [], source: CELL };
  return { cells: [cell], metadata: { language_info: { name: "python" } }, nbformat: 4, nbformat_minor: 5 };
}
