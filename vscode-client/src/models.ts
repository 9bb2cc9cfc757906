// What the editor's own models can do with kernel-lsp: a tool, and MCP servers, where this editor has such things.
import * as vscode from "vscode";
import type { Logs } from "./logs";
import { COMMANDS, METHODS, type JobStarted, type TargetsResult } from "./protocol";
import type { Server } from "./server";

const MCP_PROVIDER = "kernel-lsp.targets";
const MAX_MCP_TARGETS = 20;

/** Since VS Code 1.101, and so not in the types of the version that the extension is built against. */
interface McpApi {
  McpStdioServerDefinition?: new (label: string, command: string, args: string[]) => { cwd?: vscode.Uri };
  lm?: { registerMcpServerDefinitionProvider?(id: string, provider: { provideMcpServerDefinitions(): Promise<object[]> }): vscode.Disposable };
}

interface TargetInput {
  file: string;
  symbol: string;
}

export function registerModels(context: vscode.ExtensionContext, server: Server, logs: Logs): void {
  // Editors that are built from VS Code may lack the namespace, or parts of it.
  const lm = (vscode as { lm?: Partial<typeof vscode.lm> }).lm;
  if (lm?.registerTool === undefined) {
    logs.client.info("this editor has no language-model tools");
  } else {
    context.subscriptions.push(lm.registerTool<TargetInput>("kernel-lsp_optimize", new OptimizeTool(server)));
  }
  const register = (vscode as McpApi).lm?.registerMcpServerDefinitionProvider;
  if (register === undefined) {
    logs.client.info("this editor takes no definitions of MCP servers");
    return;
  }
  try {
    context.subscriptions.push(register(MCP_PROVIDER, { provideMcpServerDefinitions: () => mcpServers(server) }));
  } catch (error) {
    // Before 1.101 the function was there as a proposal, and refused to be called.
    logs.client.info(`this editor refuses definitions of MCP servers: ${String(error)}`);
  }
}

/** One server for each target: compile, check, time and profile kernels for it. The editor starts one when it is used. */
export async function mcpServers(server: Server): Promise<object[]> {
  const { McpStdioServerDefinition: Definition } = vscode as McpApi;
  const [folder, found] = [server.folder, server.found];
  if (Definition === undefined || folder === undefined || found === undefined || !vscode.workspace.isTrusted) return [];
  const { targets } = await server.ask<TargetsResult>(METHODS.targets, { uri: folder.toString() });
  return targets.slice(0, MAX_MCP_TARGETS).map((target) => {
    const name = `${vscode.workspace.asRelativePath(vscode.Uri.parse(target.uri), false)}::${target.symbol}`;
    return Object.assign(new Definition(`kernel-lsp ${name}`, found.program, ["mcp", name]), { cwd: folder });
  });
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
