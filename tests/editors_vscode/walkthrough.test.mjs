// Someone who has nothing but the extension: the walkthrough's four steps, from no server to a kernel, with no key and
// no GPU. The server is installed with consent, by a stand-in for uv that notes how it was called.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { after, before } from "node:test";
import { stepsOf } from "./steps.mjs";
import { ROOT, Workbench } from "./workbench.mjs";

let workbench;
let page;
const step = stepsOf(() => workbench);

before(async () => {
  workbench = await Workbench.open({ name: "walkthrough", files: {}, settings: { "kernelLsp.serverPath": "" }, prepare: withoutServer });
  page = workbench.page;
});

after(() => workbench?.close());

step("the walkthrough has four steps", async () => {
  await openWalkthrough();
  await workbench.until("four steps", async () => (await page.locator("button.getting-started-step").count()) === 4);
  await workbench.shot("01-steps");
});

step("the status bar and the Kernels view say that the server is missing, and offer to install it", async () => {
  await page.locator(".statusbar-item", { hasText: "kernel-lsp: not installed" }).waitFor();
  await workbench.openKernelsView();
  await page.locator(".pane .monaco-button", { hasText: "Install the Server" }).waitFor();
  await workbench.shot("01b-missing");
});

step("a missing server is offered to be installed, and nothing is before the user says so", async () => {
  await press("server", "Install it");
  const offer = workbench.notification(/language server was not found/);
  await offer.waitFor();
  await workbench.shot("02-offer");
  assert.ok(!existsSync(called()));
  await offer.getByRole("button", { name: "Use uv" }).click();
  await isDone("server");
  assert.deepEqual(readFileSync(called(), "utf8").trim().split("\n"), ["tool install --upgrade kernel_lsp"]);
  await workbench.shot("03-installed");
});

step("the doctor runs where it can be seen", async () => {
  await press("doctor", "Run the doctor");
  await page.locator(".terminal-wrapper.active, .integrated-terminal").first().waitFor();
  await isDone("doctor");
  await workbench.shot("04-doctor");
  await workbench.run("View: Toggle Panel Visibility");
});

step("the example opens, with what can be done above its target", async () => {
  await press("open", "Open an example");
  await workbench.lens("Optimize to CUDA").first().waitFor();
  await workbench.shot("05-example");
  await openWalkthrough();
  await isDone("open");
});

step("its optimization ends with a kernel that is checked, estimated and applied", async () => {
  await press("optimize", "Optimize to CUDA");
  const { panel, apply } = await workbench.result();
  assert.match(await panel.locator("main").innerText(), /passed \d+ test cases on the PTX executor/);
  await isDone("optimize");
  await workbench.shot("06-all-done");
  await apply.click();
  await workbench.written("kernels/rms_norm.cu", "kernels/rms_norm.py");
});

// --- below

async function openWalkthrough() {
  await workbench.run("Welcome: Open Walkthrough...");
  const input = page.locator(".quick-input-widget input.input");
  await input.fill("PyTorch to CUDA");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: "PyTorch to CUDA" }).first().click();
  await page.locator("button.getting-started-step").first().waitFor();
}

function stepButton(id) {
  return page.locator(`button.getting-started-step[data-step-id$="#${id}"]`);
}

/** Opens the step, and presses the button in it. */
async function press(id, name) {
  const button = stepButton(id);
  if (!(await button.getAttribute("class")).includes("expanded")) await button.click();
  await button.locator(".monaco-button", { hasText: name }).first().click();
}

async function isDone(id) {
  await stepButton(id).locator(".codicon-getting-started-step-checked").first().waitFor({ state: "attached" });
}

function called() {
  return join(workbench.folder, "home", "called");
}

/** A home and a PATH without the server, and with a `uv` where its installer puts the real one. */
function withoutServer(folder) {
  const home = join(folder, "home");
  const programs = join(home, ".local", "bin");
  mkdirSync(programs, { recursive: true });
  const lines = ["#!/bin/sh", `echo "$@" >>"${home}/called"`, `ln -sf "${ROOT}/.venv/bin/kernel-lsp" "${programs}/kernel-lsp"`];
  writeFileSync(join(programs, "uv"), `${lines.join("\n")}\n`, { mode: 0o755 });
  const others = process.env.PATH.split(delimiter).filter((each) => !["kernel-lsp", "uv"].some((name) => existsSync(join(each, name))));
  return { HOME: home, XDG_CACHE_HOME: process.env.XDG_CACHE_HOME ?? join(process.env.HOME, ".cache"), PATH: others.join(delimiter) };
}
