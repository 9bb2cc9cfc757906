// What this machine lacks for kernel-lsp, as `kernel-lsp doctor` says it, with the fix.
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as vscode from "vscode";
import { installInto } from "./install";
import type { Server } from "./server";

const DOCTOR_MS = 120_000;
/** What the view is about; the other checks are the doctor's alone. */
const SHOWN = ["PyTorch", "GPU", "CUDA compiler", "nvcc"];
const PIP_INSTALL = /pip install (\w+)/;

export interface Check {
  name: string;
  status: "ok" | "missing" | "broken";
  found: string;
  enables: string;
  fix: string;
  is_required: boolean;
}

/** The checks to show: those that are not in order, what the main job needs first. */
export function lacking(checks: Check[]): Check[] {
  const found = checks.filter((check) => SHOWN.includes(check.name) && check.status !== "ok");
  return found.sort((a, b) => Number(b.is_required) - Number(a.is_required));
}

/** The distribution that a fix installs into the user's environment; undefined where the server's own, or no, pip would. */
export function toInstall(check: Check): string | undefined {
  return check.name === "PyTorch" ? PIP_INSTALL.exec(check.fix)?.[1] : undefined;
}

export class MachineView implements vscode.TreeDataProvider<Check>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly view: vscode.TreeView<Check>;
  private readonly subscriptions: vscode.Disposable[];
  private known: Promise<Check[]> | undefined;

  constructor(private readonly server: Server) {
    this.view = vscode.window.createTreeView("kernel-lsp.machine", { treeDataProvider: this });
    this.subscriptions = [
      server.onChange((state) => state === "running" && this.refresh()),
      vscode.commands.registerCommand("kernel-lsp.fix", (check: Check) => this.fix(check)),
    ];
  }

  /** Examines the machine anew: it takes some seconds, so only when the view is seen. */
  refresh(): void {
    this.known = undefined;
    this.changed.fire(undefined);
  }

  async getChildren(check?: Check): Promise<Check[]> {
    if (check !== undefined || this.server.state !== "running" || !vscode.workspace.isTrusted) return [];
    this.known ??= this.examine();
    const found = lacking(await this.known);
    this.view.message = found.length === 0 ? "Nothing is missing." : undefined;
    return found;
  }

  getTreeItem(check: Check): vscode.TreeItem {
    const item = new vscode.TreeItem(`${check.name}: ${check.status}`);
    item.description = `for ${check.enables}`;
    item.tooltip = [check.found, check.fix].filter(Boolean).join("\n");
    item.iconPath = new vscode.ThemeIcon(check.is_required ? "error" : "info");
    if (check.fix) item.command = { title: "Fix", command: "kernel-lsp.fix", arguments: [check] };
    return item;
  }

  dispose(): void {
    for (const each of [...this.subscriptions, this.view, this.changed]) each.dispose();
  }

  private async examine(): Promise<Check[]> {
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
    const program = this.server.found?.program;
    if (program === undefined) return [];
    const options = { cwd: folder, timeout: DOCTOR_MS };
    // A machine that lacks something is status 1, and its report is on stdout nevertheless.
    const { stdout } = await promisify(execFile)(program, ["doctor", "--json"], options).catch((error: { stdout?: string }) => ({
      stdout: error.stdout ?? "",
    }));
    return stdout ? (JSON.parse(stdout) as { checks: Check[] }).checks : [];
  }

  private async fix(check: Check): Promise<void> {
    const distribution = toInstall(check);
    const install = distribution === undefined ? [] : [`Install ${distribution}`];
    const chosen = await vscode.window.showInformationMessage(`kernel-lsp: ${check.name}: ${check.fix}`, ...install);
    if (chosen === undefined || distribution === undefined) return;
    if (await installInto(this.server.folder, distribution)) this.refresh();
  }
}
