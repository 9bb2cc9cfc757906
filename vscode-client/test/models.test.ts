import assert from "node:assert/strict";
import { test } from "node:test";
import * as vscode from "vscode";
import { mcpServers } from "../src/models";
import type { Server } from "../src/server";

const editor = vscode as unknown as { workspace: { isTrusted: boolean } };
const folder = { toString: () => "file:///w" };
const targets = [{ uri: "file:///w/model.py", symbol: "Net", isModule: true, line: 0, inputs: "" }];
const server = {
  folder,
  found: { kind: "found", program: "/bin/kernel-lsp", origin: "path" },
  ask: () => Promise.resolve({ targets, isComplete: true }),
} as unknown as Server;

test("each target has an MCP server in its workspace", async () => {
  editor.workspace.isTrusted = true;
  assert.deepEqual(await mcpServers(server).then((found) => found.map((each) => ({ ...each }))), [
    { label: "kernel-lsp model.py::Net", command: "/bin/kernel-lsp", args: ["mcp", "model.py::Net"], cwd: folder },
  ]);
});

test("a workspace that is not trusted has none", async () => {
  editor.workspace.isTrusted = false;
  assert.deepEqual(await mcpServers(server), []);
});
