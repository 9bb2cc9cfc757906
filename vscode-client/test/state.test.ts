import assert from "node:assert/strict";
import { test } from "node:test";
import { lacking, toInstall, type Check } from "../src/machineView";
import type { ServerState } from "../src/server";
import { statusOf } from "../src/status";

function check(name: string, status: Check["status"], fix = "", isRequired = false): Check {
  return { name, status, found: "", enables: "", fix, is_required: isRequired };
}

test("every state has its words, and what can be done in it", () => {
  const table: [ServerState, number, string, string][] = [
    ["stopped", 0, "off", "kernel-lsp.restart"],
    ["starting", 0, "starting", "kernel-lsp.showServerLogs"],
    ["running", 0, "ready", "kernel-lsp.runs.focus"],
    ["running", 2, "running 2", "kernel-lsp.cancel"],
    ["failed", 0, "failed", "kernel-lsp.restart"],
    ["not found", 0, "not installed", "kernel-lsp.install"],
  ];
  for (const [state, nJobs, words, first] of table) {
    const status = statusOf(state, nJobs);
    assert.ok(status.text.endsWith(`kernel-lsp: ${words}`), status.text);
    assert.equal(status.actions[0]?.[1], first);
  }
});

test("what is missing is listed, what the main job needs first", () => {
  const checks = [check("PyTorch", "ok"), check("GPU", "missing"), check("CUDA compiler", "missing", "", true), check("ncu", "missing")];
  assert.deepEqual(lacking(checks).map((each) => each.name), ["CUDA compiler", "GPU"]);
});

test("only what goes into the selected environment is installed by a click", () => {
  assert.equal(toInstall(check("PyTorch", "missing", "run `pip install torch` there")), "torch");
  assert.equal(toInstall(check("CUDA compiler", "missing", "pip install 'kernel_lsp[cuda]'")), undefined);
  assert.equal(toInstall(check("GPU", "missing", "none is needed")), undefined);
});
