// Offers to install the server. Nothing is installed before the user has said yes, and it happens where they can see it.
import * as vscode from "vscode";
import { selectedInterpreter } from "./python";

export const DISTRIBUTION = "kernel_lsp";
const WITH_UV = "Install with uv";
const WITH_PIP = "Install into the Python environment";
const SETTING = "Choose the program…";

/** Says that there is no server, and what can be done. */
export async function offerInstall(setting: string, folder: vscode.Uri | undefined, done: () => Promise<void>): Promise<void> {
  if (setting) {
    const message = `kernel-lsp: the setting kernelLsp.serverPath names ${setting}, which is no program.`;
    if ((await vscode.window.showErrorMessage(message, "Open Settings")) !== undefined) await openSetting();
    return;
  }
  const message = "kernel-lsp: the language server was not found, neither in the selected Python environment nor on PATH. Install it?";
  await act(await vscode.window.showWarningMessage(message, WITH_UV, WITH_PIP, SETTING), folder, done);
}

/** The server is older than the extension knows how to talk to. */
export async function offerUpdate(
  version: string, wanted: string, folder: vscode.Uri | undefined, done: () => Promise<void>,
): Promise<void> {
  const message = `kernel-lsp: the server has version ${version || "unknown"}; this extension needs ${wanted} or newer. Update it?`;
  await act(await vscode.window.showWarningMessage(message, WITH_UV, WITH_PIP, SETTING), folder, done);
}

async function act(chosen: string | undefined, folder: vscode.Uri | undefined, done: () => Promise<void>): Promise<void> {
  if (chosen === SETTING) return openSetting();
  if (chosen === undefined) return;
  if (!vscode.workspace.isTrusted) {
    void vscode.window.showWarningMessage("kernel-lsp: nothing is installed from a workspace that is not trusted.");
    return;
  }
  const command = chosen === WITH_UV ? ["uv", "tool", "install", "--upgrade", DISTRIBUTION] : await pipCommand(folder);
  if (command !== undefined && (await runVisibly(command)) === 0) await done();
}

async function pipCommand(folder: vscode.Uri | undefined): Promise<string[] | undefined> {
  const interpreter = await selectedInterpreter(folder);
  if (interpreter === undefined) {
    void vscode.window.showErrorMessage("kernel-lsp: no Python environment is selected. Select one, then install again.");
    return undefined;
  }
  return [interpreter, "-m", "pip", "install", "--upgrade", DISTRIBUTION];
}

/** As a task in a terminal; the exit status. */
async function runVisibly([program, ...args]: string[]): Promise<number> {
  const execution = new vscode.ProcessExecution(program!, args);
  const definition = { type: "kernel-lsp.install" };
  const task = new vscode.Task(definition, vscode.TaskScope.Workspace, "install the server", "kernel-lsp", execution);
  const started = await vscode.tasks.executeTask(task);
  return new Promise((resolve) => {
    const listening = vscode.tasks.onDidEndTaskProcess((event) => {
      if (event.execution === started) {
        listening.dispose();
        resolve(event.exitCode ?? 1);
      }
    });
  });
}

async function openSetting(): Promise<void> {
  await vscode.commands.executeCommand("workbench.action.openSettings", "kernelLsp.serverPath");
}
