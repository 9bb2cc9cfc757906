import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync, existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import type * as vscode from "vscode";
import type { JobStore } from "../src/jobs";
import type { KeyStore } from "../src/keys";
import type { Logs } from "../src/logs";
import { selectedInterpreter } from "../src/python";
import { Server } from "../src/server";
import { answers, tasks, workspace } from "./vscode";

const folder = mkdtempSync(join(tmpdir(), "kernel-lsp-trust-"));
const trace = join(folder, "it-ran");
const uri = { fsPath: folder } as vscode.Uri;
const before = { PATH: process.env["PATH"], HOME: process.env["HOME"] };

for (const name of ["python", "kernel-lsp"]) {
  const program = join(folder, ".venv", "bin", name);
  mkdirSync(join(program, ".."), { recursive: true });
  writeFileSync(program, `#!/bin/sh\necho ran > ${trace}\n`);
  chmodSync(program, 0o755);
}

beforeEach(() => {
  Object.assign(process.env, { PATH: join(".venv", "bin"), HOME: join(folder, "home") });
  Object.assign(workspace, { isTrusted: false, workspaceFolders: [{ uri }] });
  answers.length = tasks.started.length = 0;
});

after(() => {
  Object.assign(process.env, before);
  workspace.isTrusted = true;
  rmSync(folder, { recursive: true });
});

function server(): Server {
  const logs = { client: { info: () => undefined, warn: () => undefined, error: () => undefined } } as unknown as Logs;
  const keys = { environment: () => assert.fail("no server is started, so none needs keys") } as unknown as KeyStore;
  return new Server({} as vscode.ExtensionContext, logs, {} as JobStore, keys);
}

test("a server in an untrusted folder's environment is neither found nor started, nor what a relative PATH names", async () => {
  assert.equal(await selectedInterpreter(uri), join(folder, ".venv", "bin", "python"), "it would be found");
  const untrusted = server();
  await untrusted.start();
  assert.equal(untrusted.state, "not found");
  assert.ok(!untrusted.problem.includes(folder + "/.venv"), untrusted.problem);
  assert.ok(!existsSync(trace));
});

test("nothing is installed from an untrusted folder though the user says yes", async () => {
  answers.push("Use pip");
  await server().start();
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(tasks.started, []);
  assert.ok(!existsSync(trace));
});

test("what asks a server that was not started is refused", async () => {
  await assert.rejects(server().ask("kernelLsp/status", {}), /does not run/);
});
