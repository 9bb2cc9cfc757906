// Recording a run: which program, and the task that runs it.
import * as path from "node:path";
import * as vscode from "vscode";
import { besideWithTorch, selectedInterpreter } from "./python";
import type { Server } from "./server";
import { value } from "./settings";

/** A debug configuration, as far as it matters here. */
export interface Launch {
  name: string;
  type: string;
  request?: string;
  program?: string;
  module?: string;
  args?: string[] | string;
}

export interface Program {
  label: string;
  command: string[];
}

/** The programs to offer: the file as tests or as a script, then the debug configurations that start Python. */
export function programsOf(python: string, file: string | undefined, launches: Launch[], folder: string): Program[] {
  const found: Program[] = [];
  if (file !== undefined) {
    const name = path.basename(file);
    if (/^test_|_test\.py$/.test(name)) found.push({ label: `pytest ${name}`, command: [python, "-m", "pytest", file] });
    found.push({ label: `python ${name}`, command: [python, file] });
  }
  const resolved = (text: string) =>
    text.replaceAll("${file}", file ?? "").replaceAll("${workspaceFolder}", folder).replaceAll("${cwd}", folder);
  for (const launch of launches) {
    const start = launch.module ? ["-m", launch.module] : launch.program ? [launch.program] : [];
    if (!["debugpy", "python"].includes(launch.type) || launch.request === "attach" || start.length === 0) continue;
    const given = typeof launch.args === "string" ? launch.args.split(/\s+/).filter(Boolean) : (launch.args ?? []);
    found.push({ label: launch.name, command: [python, ...[...start, ...given].map(resolved)] });
  }
  return found;
}

export async function recordRun(server: Server): Promise<void> {
  if (!vscode.workspace.isTrusted) throw new Error("nothing runs in a workspace that is not trusted");
  if (server.found === undefined) throw new Error("the server was not found");
  const document = vscode.window.activeTextEditor?.document;
  const isScript = document?.languageId === "python" && document.uri.scheme === "file";
  const folder = (document && vscode.workspace.getWorkspaceFolder(document.uri)) ?? vscode.workspace.workspaceFolders?.[0];
  const cwd = folder?.uri.fsPath ?? (isScript ? path.dirname(document.uri.fsPath) : undefined);
  if (cwd === undefined) throw new Error("open a Python file or a folder first");
  // As a run finds it: the setting, the selected environment, the server's own.
  const python = value("python", "") || ((await selectedInterpreter(folder?.uri)) ?? (await besideWithTorch(server.found.program)) ?? "python");
  const launches = vscode.workspace.getConfiguration("launch", folder?.uri).get<Launch[]>("configurations", []);
  const items = programsOf(python, isScript ? document.uri.fsPath : undefined, launches, cwd);
  if (items.length === 0) throw new Error("no program to record: open a script or a test, or add a debug configuration");
  const placeHolder = "A program that calls your functions and modules";
  const listed = items.map((item) => ({ ...item, description: item.command.slice(1).join(" ") }));
  const chosen = await vscode.window.showQuickPick(listed, { title: "Record a Run", placeHolder });
  if (chosen === undefined) return;
  if (document?.isDirty) await document.save();
  const execution = new vscode.ProcessExecution(server.found.program, ["record", "--", ...chosen.command], { cwd });
  const task = new vscode.Task({ type: "kernel-lsp.record" }, vscode.TaskScope.Workspace, "record", "kernel-lsp", execution);
  await vscode.tasks.executeTask(task);
}
