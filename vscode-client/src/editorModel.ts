// Answers the server's questions to the editor's own model, for runs whose `models` name `editor`.
import * as vscode from "vscode";
import type { Logs } from "./logs";
import { METHODS, type ChatParams, type ChatResult } from "./protocol";
import type { Server } from "./server";

const CHOSEN = "kernel-lsp.editorModel";
const NONE = "no language model is available in this editor: install and sign in to an extension that brings one, such as GitHub Copilot Chat";
const AGAIN_MS = 60_000;

type LanguageModels = Pick<typeof vscode.lm, "selectChatModels">;

/** The editor's models; undefined in an editor that is built from VS Code without them. */
export function languageModels(): LanguageModels | undefined {
  const lm = (vscode as { lm?: Partial<typeof vscode.lm> }).lm;
  return typeof lm?.selectChatModels === "function" ? (lm as LanguageModels) : undefined;
}

export class EditorModel {
  private readonly shown = new Map<string, number>();

  /** `memory` keeps which of the editor's models the user chose. */
  constructor(private readonly memory: vscode.Memento, private readonly logs: Logs) {}

  register(server: Server): void {
    server.requestHandlers.set(METHODS.completeChat, (params, token) => this.complete(params as ChatParams, token));
  }

  /** Every model there is, the chosen one first. */
  async models(): Promise<vscode.LanguageModelChat[]> {
    const found = (await languageModels()?.selectChatModels({})) ?? [];
    const chosen = this.memory.get<string>(CHOSEN);
    return [...found].sort((a, b) => Number(b.id === chosen) - Number(a.id === chosen));
  }

  async choose(id: string): Promise<void> {
    await this.memory.update(CHOSEN, id);
  }

  /** One question. Whatever goes wrong is an outcome; what only the user can change is shown, once in a while. */
  async complete(params: ChatParams, token: vscode.CancellationToken): Promise<ChatResult> {
    const model = (await this.models())[0];
    if (model === undefined) return this.failed("no_model", NONE);
    try {
      return await this.reply(model, params, token);
    } catch (error) {
      const outcome = token.isCancellationRequested ? "cancelled" : outcomeOf(error);
      return this.failed(outcome, messageOf(error), model.name);
    }
  }

  // --- below

  private async reply(model: vscode.LanguageModelChat, params: ChatParams, token: vscode.CancellationToken): Promise<ChatResult> {
    const messages = params.messages.map(({ role, content }) =>
      // The API has no system messages: they come first, as the user's.
      role === "assistant" ? vscode.LanguageModelChatMessage.Assistant(content) : vscode.LanguageModelChatMessage.User(content));
    const options = { justification: `kernel-lsp asks for CUDA kernels (${params.purpose}) in the optimization that you started.` };
    const response = await model.sendRequest(messages, options, token);
    let text = "";
    for await (const piece of response.text) text += piece;
    if (token.isCancellationRequested) return { outcome: "cancelled", model: model.name, message: "cancelled" };
    const count = async (each: string) => await model.countTokens(each).then((n) => Math.round(n), () => 0);
    const sent = await Promise.all(params.messages.map((message) => count(message.content)));
    return { outcome: "replied", model: model.name, text, nPromptTokens: sent.reduce((sum, n) => sum + n, 0), nReplyTokens: await count(text) };
  }

  private failed(outcome: ChatResult["outcome"], message: string, model = ""): ChatResult {
    this.logs.client.warn(`the editor's model: ${outcome}: ${message}`);
    if (outcome === "no_model" || outcome === "no_consent" || outcome === "quota") this.show(outcome, message);
    return { outcome, model, message };
  }

  /** A run asks many times, and one message is enough. */
  private show(outcome: "no_model" | "no_consent" | "quota", message: string): void {
    const now = Date.now();
    if (now - (this.shown.get(outcome) ?? -Infinity) < AGAIN_MS) return;
    this.shown.set(outcome, now);
    const head = { no_model: "", no_consent: "you have not let it use the editor's language model: ", quota: "the editor's language model has a limit: " }[outcome];
    void vscode.window.showWarningMessage(`kernel-lsp: ${head}${message}`, "Select Models").then((action) => {
      if (action !== undefined) void vscode.commands.executeCommand("kernel-lsp.selectModels");
    });
  }
}

/** The codes are those of `LanguageModelError`; what an extension throws besides is a failure that may pass. */
function outcomeOf(error: unknown): ChatResult["outcome"] {
  const code = (error as { code?: unknown } | undefined)?.code;
  const cause = (error as { cause?: unknown } | undefined)?.cause;
  if (code === "NoPermissions") return "no_consent";
  if (code === "Blocked") return "quota";
  if (code === "NotFound") return "no_model";
  if (/off_topic|content.?filter/i.test(`${messageOf(error)} ${messageOf(cause)}`)) return "refused";
  return code === "Canceled" ? "cancelled" : "failed";
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : error === undefined ? "" : String(error);
}
