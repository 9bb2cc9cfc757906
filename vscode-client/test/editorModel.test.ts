import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import * as vscode from "vscode";
import { EditorModel, languageModels } from "../src/editorModel";
import type { Logs } from "../src/logs";
import type { ChatParams } from "../src/protocol";

interface Sent {
  messages: object[];
  justification: string;
}

const editor = vscode as unknown as { lm: { selectChatModels?: (selector: object) => Promise<object[]> }; shown: string[] };
const logs = { client: { warn: () => undefined } } as unknown as Logs;
const params: ChatParams = {
  job: "j", purpose: "propose", temperature: 0.7, maxTokens: 100,
  messages: [{ role: "system", content: "you write CUDA" }, { role: "user", content: "go" }, { role: "assistant", content: "went" }],
};
const open = { isCancellationRequested: false } as vscode.CancellationToken;
const cancelled = { isCancellationRequested: true } as vscode.CancellationToken;

function kept(): vscode.Memento {
  const values = new Map<string, unknown>();
  return { get: (key: string) => values.get(key), update: (key: string, value: unknown) => Promise.resolve(void values.set(key, value)) } as unknown as vscode.Memento;
}

function model(id: string, pieces: (string | Error)[], sent: Sent[] = []): object {
  return {
    id, name: `name of ${id}`, vendor: "v",
    countTokens: (text: string) => Promise.resolve(text.length),
    sendRequest: (messages: object[], { justification }: { justification: string }) => {
      sent.push({ messages, justification });
      if (pieces[0] instanceof Error) return Promise.reject(pieces[0]);
      return Promise.resolve({ text: stream(pieces) });
    },
  };
}

async function* stream(pieces: (string | Error)[]): AsyncGenerator<string> {
  for (const piece of pieces) {
    if (piece instanceof Error) throw piece;
    yield await Promise.resolve(piece);
  }
}

function refusal(code: string): Error {
  return Object.assign(new Error(`it says ${code}`), { code });
}

beforeEach(() => {
  editor.shown.length = 0;
  delete editor.lm.selectChatModels;
});

function offer(...models: object[]): void {
  editor.lm.selectChatModels = () => Promise.resolve(models);
}

test("an editor without the function has no models", async () => {
  assert.equal(languageModels(), undefined);
  assert.equal((await new EditorModel(kept(), logs).complete(params, open)).outcome, "no_model");
});

test("a streamed reply comes back whole, with its tokens counted", async () => {
  const sent: Sent[] = [];
  offer(model("a", ["CO", "DE"], sent));
  assert.deepEqual(await new EditorModel(kept(), logs).complete(params, open), {
    outcome: "replied", model: "name of a", text: "CODE", nPromptTokens: 14 + 2 + 4, nReplyTokens: 4,
  });
  assert.deepEqual(sent[0]?.messages.map((message) => (message as { role: string }).role), ["user", "user", "assistant"]);
  assert.match(sent[0]?.justification ?? "", /that you started/);
});

test("the model that was chosen is asked", async () => {
  offer(model("a", ["of a"]), model("b", ["of b"]));
  const asked = new EditorModel(kept(), logs);
  await asked.choose("b");
  assert.equal((await asked.complete(params, open)).text, "of b");
});

for (const [code, outcome] of [["NoPermissions", "no_consent"], ["Blocked", "quota"], ["NotFound", "no_model"]] as const) {
  test(`${code} is ${outcome}, and the user is told once`, async () => {
    offer(model("a", [refusal(code)]));
    const asked = new EditorModel(kept(), logs);
    assert.equal((await asked.complete(params, open)).outcome, outcome);
    assert.equal((await asked.complete(params, open)).message, `it says ${code}`);
    assert.equal(editor.shown.length, 1);
    assert.match(editor.shown[0] ?? "", new RegExp(`it says ${code}`));
  });
}

test("a stream that breaks off is a failure, which the run tries again", async () => {
  offer(model("a", ["CO", new Error("the connection was lost")]));
  const result = await new EditorModel(kept(), logs).complete(params, open);
  assert.deepEqual([result.outcome, result.message], ["failed", "the connection was lost"]);
  assert.deepEqual(editor.shown, []);
});

test("a filtered reply is a refusal", async () => {
  offer(model("a", [new Error("Response got filtered: content_filter")]));
  assert.equal((await new EditorModel(kept(), logs).complete(params, open)).outcome, "refused");
});

test("what was cancelled is no reply", async () => {
  offer(model("a", ["CO"]));
  assert.equal((await new EditorModel(kept(), logs).complete(params, cancelled)).outcome, "cancelled");
  offer(model("a", [new Error("Canceled")]));
  assert.equal((await new EditorModel(kept(), logs).complete(params, cancelled)).outcome, "cancelled");
});
