// The commands of the client. Their ids begin with `kernel-lsp.`; those of the server, with `kernelLsp.`.
import * as os from "node:os";
import * as path from "node:path";
import * as vscode from "vscode";
import { ANOTHER, deviceItems, deviceProblem, readSshConfig } from "./devices";
import { languageModels, type EditorModel } from "./editorModel";
import { offerInstall } from "./install";
import type { JobStore } from "./jobs";
import { askForKey, type KeyStore } from "./keys";
import type { CandidateNode, HotSpotNode, JobNode, KernelsView, RunNode, TargetNode } from "./kernelsView";
import type { MachineCodeView } from "./machineCode";
import type { Logs } from "./logs";
import { COMMANDS, GPUS, METHODS, type JobParams, type JobStarted, type RunItem, type TargetItem, type TargetsResult } from "./protocol";
import { recordRun } from "./record";
import type { ReviewDocuments, Reviews } from "./review";
import type { RunPanels } from "./runPanel";
import type { Server } from "./server";
import { givenSettings, update, value } from "./settings";

export interface Parts {
  server: Server;
  jobs: JobStore;
  logs: Logs;
  keys: KeyStore;
  editorModel: EditorModel;
  panels: RunPanels;
  reviews: Reviews;
  documents: ReviewDocuments;
  view: KernelsView;
  code: MachineCodeView;
}

const EXAMPLE = "kernel_lsp_example.py";

export function registerCommands(context: vscode.ExtensionContext, parts: Parts): void {
  const { server, logs } = parts;
  const commands: Record<string, (...args: never[]) => unknown> = {
    restart: () => server.restart(),
    showLogs: () => logs.client.show(),
    showServerLogs: () => logs.server.show(),
    debugInformation: () => showDebugInformation(context, parts),
    doctor: () => runDoctor(server),
    install: () => offerInstall("", server.folder, () => server.restart()),
    record: () => recordRun(server),
    optimize: (node?: TargetNode | HotSpotNode) => optimize(server, COMMANDS.optimize, node),
    optimizeWithBackward: (node?: TargetNode | HotSpotNode) => optimize(server, COMMANDS.optimizeWithBackward, node),
    cancel: (node?: JobNode) => cancel(parts, node),
    resume: (node?: RunNode) => resume(parts, node),
    check: () => onKernel(server, COMMANDS.check),
    measure: () => onKernel(server, COMMANDS.measure),
    showPtx: () => parts.code.show("ptx"),
    showSass: () => parts.code.show("sass"),
    selectArchitecture: () => parts.code.selectArchitecture(),
    openReport: (node?: RunNode | CandidateNode) => openReport(parts, node),
    review: (node?: RunNode) => reviewAgain(parts, node),
    applyReview: () => parts.reviews.decide(true),
    discardReview: () => parts.reviews.decide(false),
    selectGpu: () => selectGpu(),
    selectDevice: () => selectDevice(),
    selectModels: () => selectModels(parts),
    setApiKey: () => setApiKey(parts),
    openExample: () => openExample(context),
    refreshKernels: () => parts.view.refresh(),
  };
  for (const [name, run] of Object.entries(commands)) {
    context.subscriptions.push(vscode.commands.registerCommand(`kernel-lsp.${name}`, telling(run)));
  }
}

/** A command that fails says why, in words. */
function telling(run: (...args: never[]) => unknown): (...args: unknown[]) => Promise<void> {
  return async (...args) => {
    try {
      await run(...(args as never[]));
    } catch (error) {
      void vscode.window.showErrorMessage(`kernel-lsp: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
}

// --- below: jobs

async function optimize(server: Server, command: string, node?: TargetNode | HotSpotNode): Promise<void> {
  const target: Pick<TargetItem, "uri" | "symbol"> | undefined = node?.target ?? (await targetHere(server));
  if (target === undefined) return;
  const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === target.uri);
  if (open?.isDirty) await open.save(); // the file on disk is what gets optimized
  if (open === undefined) await vscode.workspace.openTextDocument(vscode.Uri.parse(target.uri)); // shapes it lacks go there
  await server.execute<JobStarted>(command, { uri: target.uri, symbol: target.symbol });
}

/** The target at the cursor, else the only one of the file, else the one that the user picks. */
async function targetHere(server: Server): Promise<TargetItem | undefined> {
  const editor = vscode.window.activeTextEditor;
  const scope = editor?.document.languageId === "python" ? editor.document.uri : server.folder;
  if (scope === undefined) {
    void vscode.window.showInformationMessage("kernel-lsp: open a Python file or a folder first.");
    return undefined;
  }
  const { targets } = await server.ask<TargetsResult>(METHODS.targets, { uri: scope.toString() });
  const line = editor?.document.uri === scope ? editor.selection.active.line : -1;
  const above = targets.filter((target) => target.line <= line);
  if (above.length > 0) return above.at(-1);
  if (targets.length <= 1) {
    if (targets.length === 0) void vscode.window.showInformationMessage("kernel-lsp: no PyTorch function or module was found here.");
    return targets[0];
  }
  const items = targets.map((target) => ({ label: target.symbol, description: path.basename(target.uri), detail: target.inputs, target }));
  return (await vscode.window.showQuickPick(items, { title: "Optimize to CUDA" }))?.target;
}

async function cancel({ server, jobs }: Parts, node?: JobNode): Promise<void> {
  // Runs first: checks and estimates, which start by themselves, are seldom what is meant.
  const isRun = (job: JobParams) => job.kind === "optimize" || job.kind === "resume";
  const sorted = [...jobs.active].sort((a, b) => Number(isRun(b)) - Number(isRun(a)));
  const items = sorted.map((job) => ({ label: job.title, description: job.message ?? "", job }));
  const only = items.length === 1 ? items[0] : undefined;
  const placeHolder = items.length ? "A job" : "There is none";
  const job = node?.job ?? (only ?? (await vscode.window.showQuickPick(items, { title: "Cancel", placeHolder })))?.job;
  if (job !== undefined) await server.execute(COMMANDS.cancel, { job: job.job });
}

async function resume(parts: Parts, node?: RunNode): Promise<void> {
  const run = node?.run ?? (await pickRun(parts, "Resume", (each) => each.status !== "finished"));
  if (run !== undefined) await parts.server.execute(COMMANDS.resume, { uri: run.uri, run: run.run });
}

async function onKernel(server: Server, command: string): Promise<void> {
  const document = vscode.window.activeTextEditor?.document;
  if (document === undefined || !document.languageId.startsWith("cuda")) {
    void vscode.window.showInformationMessage("kernel-lsp: open a .cu file first.");
  } else if (server.has(command)) {
    await server.execute(command, { uri: document.uri.toString() });
  } else {
    void vscode.window.showInformationMessage(`kernel-lsp: this server cannot ${command.split(".")[1]}; update it.`);
  }
}

// --- below: runs

async function openReport(parts: Parts, node?: RunNode | CandidateNode): Promise<void> {
  const run = node?.run ?? (await pickRun(parts, "Report", () => true));
  if (run === undefined) return;
  const candidate = node?.kind === "candidate" ? node.candidate.candidate_id : undefined;
  await parts.panels.open(run.uri, run.run, { candidate });
}

async function reviewAgain(parts: Parts, node?: RunNode): Promise<void> {
  const run = node?.run ?? (await pickRun(parts, "Review", (each) => each.hasKernel));
  if (run !== undefined) await parts.reviews.again(run.uri, run.run);
}

async function pickRun(parts: Parts, title: string, fits: (run: RunItem) => boolean): Promise<RunItem | undefined> {
  const runs = (await parts.view.knownRuns()).filter(fits);
  const items = runs.map((run) => ({ label: run.target, description: run.run, detail: run.result || run.status, run }));
  return (await vscode.window.showQuickPick(items, { title, placeHolder: runs.length ? "A run" : "There is none" }))?.run;
}

// --- below: settings

async function selectGpu(): Promise<void> {
  const chosen = await vscode.window.showQuickPick([...GPUS], { title: `Target GPU of estimates: ${value("targetGpu", "H200")}` });
  if (chosen !== undefined) await update("targetGpu", chosen);
}

async function selectDevice(): Promise<void> {
  const current = value("device", "auto");
  const chosen = await vscode.window.showQuickPick(deviceItems(current, readSshConfig()), { title: `Kernels run on: ${current}` });
  const name = chosen?.label === ANOTHER ? await nameDevice(current) : chosen?.label;
  if (name !== undefined) await update("device", name.trim());
}

async function nameDevice(current: string): Promise<string | undefined> {
  const prompt = "ssh://HOST as `ssh HOST` reaches it without a password, or ray://HOST:10001 for a Ray cluster.";
  return vscode.window.showInputBox({ title: "Kernels run on", prompt, value: current, validateInput: deviceProblem });
}

async function selectModels({ editorModel }: Parts): Promise<void> {
  const offered = languageModels() === undefined ? [] : await editorModel.models();
  const items = [
    ...offered.map((model) => ({ label: model.name, description: `this editor's, from ${model.vendor}`, id: model.id })),
    { label: "Others…", description: "by name, with a key or a local server", id: "" },
    { label: "None", description: "the built-in generator alone", id: undefined },
  ];
  if (offered.length === 0) return nameModels();
  const chosen = await vscode.window.showQuickPick(items, { title: "Models that propose kernels beside the built-in generator" });
  if (chosen === undefined) return;
  if (chosen.id === "") return nameModels();
  if (chosen.id !== undefined) await editorModel.choose(chosen.id);
  await update("models", chosen.id === undefined ? [] : ["editor"]);
}

async function nameModels(): Promise<void> {
  const text = await vscode.window.showInputBox({
    title: "Models that propose kernels beside the built-in generator",
    prompt: "Names as LiteLLM has them, separated by commas, e.g. anthropic/claude-sonnet-4-5, ollama/qwen3-coder. Empty: the generator alone.",
    value: value<string[]>("models", []).join(", "),
  });
  if (text !== undefined) await update("models", text.split(",").map((name) => name.trim()).filter(Boolean));
}

async function setApiKey({ keys, server }: Parts): Promise<void> {
  const given = await askForKey();
  if (given === undefined) return;
  await keys.set(given.variable, given.key);
  await server.restart();
}

// --- below: help

async function runDoctor(server: Server): Promise<void> {
  if (!vscode.workspace.isTrusted) throw new Error("nothing runs in a workspace that is not trusted");
  if (server.found === undefined) throw new Error("the server was not found");
  const execution = new vscode.ProcessExecution(server.found.program, ["doctor"]);
  const task = new vscode.Task({ type: "kernel-lsp.doctor" }, vscode.TaskScope.Workspace, "doctor", "kernel-lsp", execution);
  await vscode.tasks.executeTask(task);
}

async function openExample(context: vscode.ExtensionContext): Promise<void> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri ?? context.globalStorageUri;
  const target = vscode.Uri.joinPath(folder, EXAMPLE);
  try {
    await vscode.workspace.fs.stat(target);
  } catch {
    await vscode.workspace.fs.createDirectory(folder);
    await vscode.workspace.fs.copy(vscode.Uri.joinPath(context.extensionUri, "dist", "example.py"), target);
  }
  await vscode.window.showTextDocument(target);
}

async function showDebugInformation(context: vscode.ExtensionContext, { server, jobs, keys, documents }: Parts): Promise<void> {
  const given = Object.entries(givenSettings());
  const lines = [
    "# kernel-lsp", "",
    `- extension ${String(context.extension.packageJSON.version)}, ${vscode.env.appName} ${vscode.version}, ${vscode.env.remoteName ?? "local"}`,
    `- ${os.type()} ${os.release()}, ${os.arch()}, Node.js ${process.versions.node}`,
    `- server: ${server.state}${server.version ? `, version ${server.version}` : ""}`,
    `- program: ${server.found ? `${server.found.program} (from the ${server.found.origin})` : server.problem}`,
    `- workspace: ${vscode.workspace.isTrusted ? "trusted" : "not trusted"}, ${vscode.workspace.workspaceFolders?.length ?? 0} folders`,
    `- jobs: ${jobs.active.map((job) => `${job.title} (${job.state})`).join(", ") || "none"}`,
    `- keys kept: ${(await keys.names()).join(", ") || "none"}`,
    `- settings given: ${given.map(([name, each]) => `${name} = ${JSON.stringify(each)}`).join(", ") || "none"}`,
  ];
  if (server.state === "running") {
    const status = await server.ask<object>(METHODS.status, {});
    lines.push("", "```json", JSON.stringify(status, undefined, 2), "```");
  }
  const uri = documents.put(`debug ${Date.now()}`, "after", vscode.Uri.file("/kernel-lsp.md"), `${lines.join("\n")}\n`);
  await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), { preview: true });
}
