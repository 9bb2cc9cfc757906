// Offers to install the server. Nothing is installed before the user has said yes, and it happens where they can see it.
import * as os from "node:os";
import * as vscode from "vscode";
import { findProgram, isExecutable, PROGRAM_ENDING } from "./findServer";
import { selectedInterpreter } from "./python";

export const DISTRIBUTION = "kernel_lsp";
// Short: a notification cuts longer ones off.
const WITH_UV = "Use uv";
const WITH_PIP = "Use pip";
const SETTING = "Settings…";
const AFTER_PROCESS_MS = 1000;

/** Says that there is no server, and what can be done. */
export async function offerInstall(setting: string, folder: vscode.Uri | undefined, done: () => Promise<void>): Promise<void> {
  if (setting) {
    const message = `kernel-lsp: the setting kernelLsp.serverPath names ${setting}, which is no program.`;
    if ((await vscode.window.showErrorMessage(message, "Open Settings")) !== undefined) await openSetting();
    return;
  }
  const message = "kernel-lsp: the language server was not found, neither in the selected Python environment nor on PATH. Install it, as a tool with uv or into that environment with pip?";
  await act(await vscode.window.showWarningMessage(message, WITH_UV, WITH_PIP, SETTING), folder, done);
}

/** The server is older than the extension knows how to talk to. */
export async function offerUpdate(
  version: string, wanted: string, folder: vscode.Uri | undefined, done: () => Promise<void>,
): Promise<void> {
  const message = `kernel-lsp: the server has version ${version || "unknown"}; this extension needs ${wanted} or newer. Update it?`;
  await act(await vscode.window.showWarningMessage(message, WITH_UV, WITH_PIP, SETTING), folder, done);
}

/** Installs a distribution into the selected environment; true when that worked. */
export async function installInto(folder: vscode.Uri | undefined, distribution: string): Promise<boolean> {
  if (!vscode.workspace.isTrusted) return false;
  const command = await pipCommand(folder, distribution);
  return command !== undefined && (await runVisibly(command)) === 0;
}

async function act(chosen: string | undefined, folder: vscode.Uri | undefined, done: () => Promise<void>): Promise<void> {
  if (chosen === SETTING) return openSetting();
  if (chosen === undefined) return;
  if (!vscode.workspace.isTrusted) {
    void vscode.window.showWarningMessage("kernel-lsp: nothing is installed from a workspace that is not trusted.");
    return;
  }
  const command = chosen === WITH_UV ? await uvCommand() : await pipCommand(folder);
  if (command !== undefined && (await runVisibly(command)) === 0) await done();
}

/** With the whole path: a task's terminal may have another `PATH` than we do. */
async function uvCommand(): Promise<string[] | undefined> {
  const uv = await findProgram(`uv${PROGRAM_ENDING}`, { searchPath: process.env["PATH"] ?? "", home: os.homedir(), isExecutable });
  if (uv === undefined) {
    void vscode.window.showErrorMessage("kernel-lsp: uv was not found, neither on PATH nor in ~/.local/bin. Use pip, or install uv: https://docs.astral.sh/uv");
    return undefined;
  }
  return [uv, "tool", "install", "--upgrade", DISTRIBUTION];
}

async function pipCommand(folder: vscode.Uri | undefined, distribution = DISTRIBUTION): Promise<string[] | undefined> {
  const interpreter = await selectedInterpreter(folder);
  if (interpreter === undefined) {
    void vscode.window.showErrorMessage("kernel-lsp: no Python environment is selected. Select one, then install again.");
    return undefined;
  }
  return [interpreter, "-m", "pip", "install", "--upgrade", distribution];
}

/** As a task in a terminal; the exit status. */
async function runVisibly([program, ...args]: string[]): Promise<number> {
  const execution = new vscode.ProcessExecution(program!, args);
  const definition = { type: "kernel-lsp.install" };
  const task = new vscode.Task(definition, vscode.TaskScope.Workspace, "install the server", "kernel-lsp", execution);
  const started = await vscode.tasks.executeTask(task);
  return new Promise((resolve) => {
    const listening: vscode.Disposable[] = [];
    const end = (status: number) => {
      listening.forEach((each) => each.dispose());
      resolve(status);
    };
    listening.push(
      vscode.tasks.onDidEndTaskProcess((event) => event.execution === started && end(event.exitCode ?? 1)),
      // Without a process, when it could not be started. The end of a process is told first.
      vscode.tasks.onDidEndTask((event) => event.execution === started && setTimeout(() => end(1), AFTER_PROCESS_MS)),
    );
  });
}

async function openSetting(): Promise<void> {
  await vscode.commands.executeCommand("workbench.action.openSettings", "kernelLsp.serverPath");
}
