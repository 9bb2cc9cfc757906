// A folder that the user does not trust: it is read, and nothing of it runs.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { ROOT, Workbench } from "./workbench.mjs";

const A_WHILE_MS = 3000;
let workbench;

before(async () => {
  workbench = await Workbench.open({ name: "untrusted", trust: false, files: { "rms_norm.py": join(ROOT, "examples", "rms_norm.py") } });
  await workbench.page.getByRole("button", { name: /No, I don't trust/ }).click();
});

after(() => workbench?.close());

test("static rules and lenses are there, and nothing runs though it is asked for", async () => {
  await workbench.openFile("rms_norm.py");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  await workbench.page.locator(".squiggly-info, .squiggly-warning").first().waitFor();
  await workbench.lens("Optimize to CUDA").first().click();
  await workbench.notification(/not trusted/).waitFor();
  await workbench.page.waitForTimeout(A_WHILE_MS);
  assert.deepEqual(workbench.processes("kernel_lsp.engine"), []);
  assert.ok(!existsSync(join(workbench.workspace, ".kernel-lsp")));
  await workbench.shot("01-nothing-ran");
});
