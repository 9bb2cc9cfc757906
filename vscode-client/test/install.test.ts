import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import type * as vscode from "vscode";
import { offerInstall, offerUpdate } from "../src/install";
import { answers, executed, shown, tasks, workspace } from "./vscode";

const folder = mkdtempSync(join(tmpdir(), "kernel-lsp-install-"));
const uri = { fsPath: folder } as vscode.Uri;
const uv = join(folder, "bin", "uv");
const python = join(folder, ".venv", "bin", "python");
const before = process.env["PATH"];
let nDone = 0;
const done = () => Promise.resolve(void nDone++);

for (const program of [uv, python]) {
  mkdirSync(join(program, ".."), { recursive: true });
  writeFileSync(program, "#!/bin/sh\nexit 1\n");
  chmodSync(program, 0o755);
}

beforeEach(() => {
  process.env["PATH"] = join(folder, "bin");
  for (const list of [answers, executed, shown, tasks.started]) list.length = 0;
  tasks.exitCode = 0;
  workspace.isTrusted = true;
  nDone = 0;
});

after(() => {
  process.env["PATH"] = before;
  rmSync(folder, { recursive: true });
});

async function offered(answer: string | undefined): Promise<string[][]> {
  answers.push(answer);
  await offerInstall("", uri, done);
  return tasks.started;
}

test("nothing is installed when the offer is closed", async () => {
  assert.deepEqual(await offered(undefined), []);
  assert.equal(nDone, 0);
  assert.match(shown[0]!, /not found/);
});

test("uv installs it as a tool, by uv's whole path, after a yes", async () => {
  assert.deepEqual(await offered("Use uv"), [[uv, "tool", "install", "--upgrade", "kernel_lsp"]]);
  assert.equal(nDone, 1);
});

test("pip installs it into the selected environment", async () => {
  assert.deepEqual(await offered("Use pip"), [[python, "-m", "pip", "install", "--upgrade", "kernel_lsp"]]);
  assert.equal(nDone, 1);
});

test("an installation that fails starts no server", async () => {
  tasks.exitCode = 1;
  assert.equal((await offered("Use pip")).length, 1);
  assert.equal(nDone, 0);
});

test("without a Python environment pip is not run, and the user is told", async () => {
  answers.push("Use pip");
  await offerInstall("", undefined, done);
  assert.deepEqual(tasks.started, []);
  assert.match(shown[1]!, /no Python environment/);
});

test("nothing is installed from a workspace that is not trusted", async () => {
  workspace.isTrusted = false;
  assert.deepEqual(await offered("Use uv"), []);
  assert.deepEqual(await offered("Use pip"), []);
  assert.match(shown.join(), /not trusted/);
});

test("a wrong setting is told and can be opened, and nothing is installed", async () => {
  answers.push("Open Settings");
  await offerInstall("/gone/kernel-lsp", uri, done);
  assert.match(shown[0]!, /\/gone\/kernel-lsp/);
  assert.deepEqual(executed, [["workbench.action.openSettings", "kernelLsp.serverPath"]]);
  assert.deepEqual(tasks.started, []);
});

test("a server that is too old is updated after a yes alone", async () => {
  answers.push(undefined);
  await offerUpdate("0.0.1", "9.0.0", uri, done);
  assert.deepEqual(tasks.started, []);
  answers.push("Use uv");
  await offerUpdate("0.0.1", "9.0.0", uri, done);
  assert.equal(tasks.started.length, 1);
  assert.match(shown[0]!, /0\.0\.1.*9\.0\.0/);
});
