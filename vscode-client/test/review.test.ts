import assert from "node:assert/strict";
import { test } from "node:test";
import type * as vscode from "vscode";
import { applyAndSave } from "../src/review";
import { workspace } from "./vscode";

const uri = (name: string) => ({ toString: () => `file:///w/${name}` }) as vscode.Uri;

/** The files that are saved when an edit of `a.py` and `b.py` is made, or refused. */
async function saved(dirty: string[], isMade = true): Promise<string[]> {
  const found: string[] = [];
  const textDocuments = ["a.py", "b.py", "c.py"].map((name) => ({
    uri: uri(name), isDirty: dirty.includes(name), save: () => Promise.resolve(found.push(name)),
  }));
  Object.assign(workspace, { textDocuments, applyEdit: () => Promise.resolve(isMade) });
  const edit = { entries: () => [[uri("a.py"), []], [uri("b.py"), []]] } as unknown as vscode.WorkspaceEdit;
  assert.equal(await applyAndSave(edit), isMade);
  return found;
}

test("files that an edit of the server's changes are saved, for the run after it reads them", async () => {
  assert.deepEqual(await saved([]), ["a.py", "b.py"]);
});

test("a file with changes of the user's own is not saved for them", async () => {
  assert.deepEqual(await saved(["b.py"]), ["a.py"]);
});

test("an edit that was refused saves nothing", async () => {
  assert.deepEqual(await saved([], false), []);
});
