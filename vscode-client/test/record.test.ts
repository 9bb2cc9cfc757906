import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { besideWithTorch } from "../src/python";
import { programsOf, type Launch } from "../src/record";

function check(file: string | undefined, launches: Launch[], ...commands: string[]): void {
  assert.deepEqual(programsOf("py", file, launches, "/w").map((each) => each.command.join(" ")), commands);
}

test("a script is offered as it is, and a test by pytest first", () => {
  check("/w/train.py", [], "py /w/train.py");
  check("/w/test_model.py", [], "py -m pytest /w/test_model.py", "py /w/test_model.py");
});

test("debug configurations that start Python are offered with their arguments", () => {
  const launches = [
    { name: "a", type: "debugpy", request: "launch", program: "${workspaceFolder}/a.py", args: ["--data", "${file}"] },
    { name: "b", type: "python", module: "app.train", args: "--epochs 1" },
    { name: "c", type: "debugpy", request: "attach", program: "c.py" },
    { name: "d", type: "node", program: "d.js" },
  ];
  check(undefined, launches, "py /w/a.py --data ", "py -m app.train --epochs 1");
});

test("the interpreter beside the server counts where its environment has torch", async () => {
  const environment = mkdtempSync(join(tmpdir(), "kernel-lsp-"));
  const program = join(environment, "bin", "kernel-lsp");
  assert.equal(await besideWithTorch(program), undefined);
  mkdirSync(join(environment, "lib", "python3.12", "site-packages", "torch"), { recursive: true });
  assert.equal(await besideWithTorch(program), join(environment, "bin", "python"));
});
