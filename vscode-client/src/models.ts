// What the editor's own models can do with kernel-lsp: tools, where this editor has such a thing.
import * as vscode from "vscode";
import type { Logs } from "./logs";
import { COMMANDS, type JobStarted } from "./protocol";
import type { Server } from "./server";

interface TargetInput {
  file: string;
  symbol: string;
}

export function registerModels(context: vscode.ExtensionContext, server: Server, logs: Logs): void {
  // Editors that are built from VS Code may lack the namespace, or parts of it.
  const lm = (vscode as { lm?: Partial<typeof vscode.lm> }).lm;
  if (lm?.registerTool === undefined) {
    logs.client.info("this editor has no language-model tools");
    return;
  }
  context.subscriptions.push(lm.registerTool<TargetInput>("kernel-lsp_optimize", new OptimizeTool(server)));
}

/** Starts a run. The user confirms it, and reviews its result as that of any other run. */
class OptimizeTool implements vscode.LanguageModelTool<TargetInput> {
  constructor(private readonly server: Server) {}

  prepareInvocation({ input }: vscode.LanguageModelToolInvocationPrepareOptions<TargetInput>): vscode.PreparedToolInvocation {
    return {
      invocationMessage: `Optimizing ${input.symbol}`,
      confirmationMessages: { title: "Optimize to CUDA", message: `Import ${input.file} and optimize ${input.symbol}?` },
    };
  }

  async invoke({ input }: vscode.LanguageModelToolInvocationOptions<TargetInput>): Promise<vscode.LanguageModelToolResult> {
    const folder = this.server.folder;
    const uri = folder === undefined ? vscode.Uri.file(input.file) : vscode.Uri.joinPath(folder, input.file);
    const started = await this.server.execute<JobStarted>(COMMANDS.optimize, { uri: uri.toString(), symbol: input.symbol });
    const text = `Job ${started.job} is running. The user is shown its progress and reviews its result.`;
    return new vscode.LanguageModelToolResult([new vscode.LanguageModelTextPart(text)]);
  }
}
