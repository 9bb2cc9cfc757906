import assert from "node:assert/strict";
import { test } from "node:test";
import type * as vscode from "vscode";
import { askForKey, KeyStore } from "../src/keys";
import { answers, executed, shown, workspace } from "./vscode";

const KEY = "sk-not-a-real-key";

function storage(): { held: Map<string, string>; keys: KeyStore } {
  const held = new Map<string, string>();
  const secrets = {
    get: (name: string) => Promise.resolve(held.get(name)),
    store: (name: string, value: string) => Promise.resolve(void held.set(name, value)),
    delete: (name: string) => Promise.resolve(void held.delete(name)),
  };
  return { held, keys: new KeyStore(secrets as unknown as vscode.SecretStorage) };
}

test("a key that is set reaches the server's environment", async () => {
  const { keys } = storage();
  await keys.set("OPENAI_API_KEY", KEY);
  assert.deepEqual(await keys.environment(), { OPENAI_API_KEY: KEY });
});

test("another key takes the place of the one before", async () => {
  const { keys } = storage();
  await keys.set("OPENAI_API_KEY", "old");
  await keys.set("OPENAI_API_KEY", KEY);
  assert.deepEqual(await keys.environment(), { OPENAI_API_KEY: KEY });
  assert.deepEqual(await keys.names(), ["OPENAI_API_KEY"]);
});

test("a key that is removed is nowhere, and the others stay", async () => {
  const { held, keys } = storage();
  await keys.set("OPENAI_API_KEY", KEY);
  await keys.set("GEMINI_API_KEY", "other");
  await keys.set("OPENAI_API_KEY", "");
  assert.deepEqual(await keys.environment(), { GEMINI_API_KEY: "other" });
  assert.ok(![...held].some((entry) => entry.join().includes(KEY)));
  assert.ok(![...held].some((entry) => entry.join().includes("OPENAI")));
});

test("a key is in the secret storage alone: no setting is written, nothing is shown or handed to a command", async () => {
  const { held, keys } = storage();
  const printed: unknown[] = [];
  const kept = { log: console.log, info: console.info, warn: console.warn, error: console.error };
  for (const name of ["log", "info", "warn", "error"] as const) console[name] = (...parts) => void printed.push(...parts);
  try {
    answers.push("OPENAI_API_KEY", ` ${KEY} `);
    const given = await askForKey();
    assert.deepEqual(given, { variable: "OPENAI_API_KEY", key: KEY });
    await keys.set(given!.variable, given!.key);
    await keys.environment();
  } finally {
    Object.assign(console, kept);
  }
  assert.equal([...held.values()].filter((value) => value === KEY).length, 1);
  assert.ok(!JSON.stringify([printed, workspace.written, shown, executed]).includes(KEY));
});

test("who thinks better of it changes nothing", async () => {
  answers.push("OPENAI_API_KEY", undefined);
  assert.equal(await askForKey(), undefined);
  answers.push(undefined);
  assert.equal(await askForKey(), undefined);
});
