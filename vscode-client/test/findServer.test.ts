import assert from "node:assert/strict";
import { test } from "node:test";
import { findProgram, findServer, isNewEnough, type Places } from "../src/findServer";

function places(there: string[], given: Partial<Places> = {}): Places {
  const isExecutable = (file: string) => Promise.resolve(there.includes(file));
  return { setting: "", interpreter: undefined, searchPath: "/usr/bin:bin", home: "/home/me", isExecutable, ...given };
}

async function program(there: string[], given: Partial<Places> = {}): Promise<string> {
  const found = await findServer(places(there, given));
  return found.kind === "found" ? `${found.origin} ${found.program}` : "none";
}

test("the environment comes before PATH", async () => {
  const there = ["/env/bin/kernel-lsp", "/usr/bin/kernel-lsp"];
  assert.equal(await program(there, { interpreter: "/env/bin/python" }), "environment /env/bin/kernel-lsp");
  assert.equal(await program(there), "path /usr/bin/kernel-lsp");
});

test("the setting comes before the environment and PATH", async () => {
  const there = ["/set/kernel-lsp", "/env/bin/kernel-lsp", "/usr/bin/kernel-lsp"];
  assert.equal(await program(there, { setting: "/set/kernel-lsp", interpreter: "/env/bin/python" }), "setting /set/kernel-lsp");
});

test("every place that was looked at is told, in order", async () => {
  const found = await findServer(places([], { interpreter: "/env/bin/python" }));
  const looked = ["/env/bin/kernel-lsp", "/usr/bin/kernel-lsp", "/home/me/.local/bin/kernel-lsp"];
  assert.deepEqual(found, { kind: "not-found", looked });
});

test("a program is the first of its name on PATH, then where a desktop's PATH lacks it", async () => {
  const both = ["/usr/bin/uv", "/home/me/.local/bin/uv"];
  assert.equal(await findProgram("uv", places(both)), "/usr/bin/uv");
  assert.equal(await findProgram("uv", places(both.slice(1))), "/home/me/.local/bin/uv");
  assert.equal(await findProgram("uv", places(["bin/uv"])), undefined);
});

test("an environment without the server is passed over", async () => {
  assert.equal(await program(["/usr/bin/kernel-lsp"], { interpreter: "/env/bin/python" }), "path /usr/bin/kernel-lsp");
});

test("a setting that is wrong is not passed over", async () => {
  assert.equal(await program(["/usr/bin/kernel-lsp"], { setting: "/gone/kernel-lsp" }), "none");
});

test("a setting may start at home", async () => {
  assert.equal(await program(["/home/me/x"], { setting: "~/x" }), "setting /home/me/x");
});

test("a relative folder on PATH is one of the workspace, and not looked at", async () => {
  const found = await findServer(places([]));
  assert.ok(found.kind === "not-found" && found.looked.every((file) => file.startsWith("/")));
});

test("where uv installs is looked at though PATH lacks it", async () => {
  assert.equal(await program(["/home/me/.local/bin/kernel-lsp"]), "path /home/me/.local/bin/kernel-lsp");
});

test("versions compare by numbers", () => {
  assert.ok(isNewEnough("0.10.0", "0.9.5"));
  assert.ok(isNewEnough("0.1.0", "0.1.0"));
  assert.ok(isNewEnough("1.0.0+local", "1.0.0"));
  assert.ok(!isNewEnough("0.1.0", "0.1.1"));
});

test("what is no version is not new enough", () => {
  assert.ok(!isNewEnough(undefined, "0.1.0"));
  assert.ok(!isNewEnough("unknown", "0.1.0"));
});
