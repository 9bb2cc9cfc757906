import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { ANOTHER, deviceItems, deviceProblem, readSshConfig, sshHosts } from "../src/devices";

const CONFIG = "# mine\nHost gpu lab-*\n  HostName 10.0.0.7\nhost = workstation\nHost *\n  User me\nMatch host x\nHost gpu\n";

test("hosts of OpenSSH's configuration are offered, and patterns are not", () => {
  assert.deepEqual(sshHosts(CONFIG), ["gpu", "workstation"]);
  const labels = deviceItems("auto", CONFIG).map((item) => item.label);
  assert.deepEqual(labels, ["auto", "cpu", "cuda", "cuda:all", "ssh://gpu", "ssh://workstation", "ray", ANOTHER]);
});

test("a device that is set and not among them comes first", () => {
  assert.equal(deviceItems("ssh://me@far:2222", "")[0].label, "ssh://me@far:2222");
  assert.equal(deviceItems("cuda:all", "").filter((item) => item.label === "cuda:all").length, 1);
});

test("a name that the server would refuse is told", () => {
  for (const name of ["ssh://me@far:2222/opt/python", "ray://head:10001?slots=8", "cuda:1", " cpu "]) assert.equal(deviceProblem(name), undefined);
  for (const name of ["", "gpu", "ssh://", "cuda:x"]) assert.match(deviceProblem(name) ?? "", /ssh:\/\//);
});

test("the pattern is that of the setting", () => {
  const setting = JSON.parse(readFileSync("package.json", "utf8")).contributes.configuration;
  const sections = Array.isArray(setting) ? setting : [setting];
  const pattern = new RegExp(sections.map((each) => each.properties["kernelLsp.device"]?.pattern).find(Boolean));
  for (const name of ["auto", "cuda:12", "ssh://a", "ray", "ray?slots=2", "gpu", "ssh://"]) assert.equal(deviceProblem(name) === undefined, pattern.test(name));
});

test("a machine without a configuration has no hosts", () => {
  const home = mkdtempSync(join(tmpdir(), "kernel-lsp-home-"));
  assert.equal(readSshConfig(home), "");
  mkdirSync(join(home, ".ssh"));
  writeFileSync(join(home, ".ssh", "config"), CONFIG);
  assert.equal(readSshConfig(home), CONFIG);
});
