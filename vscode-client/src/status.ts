// One item in the status bar: off, starting, ready, running n, failed. A click lists what can be done in that state.
import * as vscode from "vscode";
import type { JobStore } from "./jobs";
import type { Server, ServerState } from "./server";
import { SECTION, value } from "./settings";

export interface Status {
  text: string;
  isBad: boolean;
  /** Commands that make sense in this state, the likeliest first: [title, command]. */
  actions: [string, string][];
}

const LOGS: [string, string] = ["Show Server Logs", "kernel-lsp.showServerLogs"];
const RESTART: [string, string] = ["Restart the Server", "kernel-lsp.restart"];
const INSTALL: [string, string] = ["Install the Server…", "kernel-lsp.install"];
const DOCTOR: [string, string] = ["Examine This Machine", "kernel-lsp.doctor"];
const GPU: [string, string] = ["Select Target GPU…", "kernel-lsp.selectGpu"];
const CANCEL: [string, string] = ["Cancel a Job…", "kernel-lsp.cancel"];
const RUNS: [string, string] = ["Show the Runs", "kernel-lsp.runs.focus"];

/** What the item shows and offers. */
export function statusOf(state: ServerState, nJobs: number): Status {
  switch (state) {
    case "stopped":
      return { text: "$(circle-slash) kernel-lsp: off", isBad: false, actions: [RESTART, LOGS] };
    case "starting":
      return { text: "$(sync~spin) kernel-lsp: starting", isBad: false, actions: [LOGS] };
    case "not found":
      return { text: "$(error) kernel-lsp: not installed", isBad: true, actions: [INSTALL, LOGS] };
    case "failed":
      return { text: "$(error) kernel-lsp: failed", isBad: true, actions: [RESTART, LOGS, INSTALL] };
    case "running":
      return nJobs === 0
        ? { text: "$(check) kernel-lsp: ready", isBad: false, actions: [RUNS, GPU, DOCTOR, LOGS, RESTART] }
        : { text: `$(sync~spin) kernel-lsp: running ${nJobs}`, isBad: false, actions: [CANCEL, RUNS, GPU, LOGS] };
  }
}

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("kernel-lsp.status", vscode.StatusBarAlignment.Right);
  private readonly subscriptions: vscode.Disposable[];

  constructor(private readonly server: Server, private readonly jobs: JobStore) {
    this.item.name = "kernel-lsp";
    this.item.command = "kernel-lsp.status";
    this.subscriptions = [
      vscode.commands.registerCommand("kernel-lsp.status", () => this.choose()),
      server.onChange(() => this.show()),
      jobs.onChange(() => this.show()),
      vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration(SECTION) && this.show()),
    ];
    this.show();
    this.item.show();
  }

  dispose(): void {
    for (const each of [...this.subscriptions, this.item]) each.dispose();
  }

  private get status(): Status {
    return statusOf(this.server.state, this.jobs.active.length);
  }

  private show(): void {
    const { text, isBad } = this.status;
    this.item.text = text;
    this.item.tooltip = this.tooltip();
    this.item.backgroundColor = isBad ? new vscode.ThemeColor("statusBarItem.errorBackground") : undefined;
  }

  private tooltip(): string {
    const jobs = this.jobs.active.map((job) => `${job.title}: ${job.percentage ?? 0} % ${job.message ?? ""}`);
    const program = this.server.state === "running" ? `${this.server.version}, ${this.server.found?.program}` : this.server.problem;
    return [program, ...jobs, `Estimates for ${value("targetGpu", "H200")}; kernels run on: ${value("device", "auto")}`]
      .filter(Boolean)
      .join("\n");
  }

  private async choose(): Promise<void> {
    const items = this.status.actions.map(([label, command]) => ({ label, command }));
    const chosen = await vscode.window.showQuickPick(items, { title: "kernel-lsp" });
    if (chosen !== undefined) await vscode.commands.executeCommand(chosen.command);
  }
}
