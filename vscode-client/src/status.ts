// Language Status items: the engine, the GPU, and what is running.
import * as vscode from "vscode";
import type { JobStore } from "./jobs";
import { SELECTOR, type Server, type ServerState } from "./server";
import { SECTION, value } from "./settings";

export class StatusItems implements vscode.Disposable {
  private readonly engine = vscode.languages.createLanguageStatusItem("kernel-lsp.engine", SELECTOR);
  private readonly gpu = vscode.languages.createLanguageStatusItem("kernel-lsp.gpu", SELECTOR);
  private readonly running = vscode.languages.createLanguageStatusItem("kernel-lsp.jobs", SELECTOR);
  private readonly subscriptions: vscode.Disposable[];

  constructor(private readonly server: Server, private readonly jobs: JobStore) {
    this.engine.name = "kernel-lsp server";
    this.gpu.name = "kernel-lsp GPU";
    this.running.name = "kernel-lsp jobs";
    this.gpu.command = { title: "Select", command: "kernel-lsp.selectGpu" };
    this.subscriptions = [
      server.onChange((state) => this.showServer(state)),
      jobs.onChange(() => this.showJobs()),
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(SECTION)) this.showGpu();
      }),
    ];
    this.showServer(server.state);
    this.showGpu();
    this.showJobs();
  }

  dispose(): void {
    for (const each of [...this.subscriptions, this.engine, this.gpu, this.running]) each.dispose();
  }

  private showServer(state: ServerState): void {
    this.engine.text = state === "running" ? `kernel-lsp ${this.server.version}` : `kernel-lsp: ${state}`;
    this.engine.detail = state === "running" ? this.server.found?.program : this.server.problem;
    this.engine.busy = state === "starting";
    const bad = state === "not found" || state === "failed";
    this.engine.severity = bad ? vscode.LanguageStatusSeverity.Error : vscode.LanguageStatusSeverity.Information;
    this.engine.command = bad
      ? { title: "Install", command: "kernel-lsp.install" }
      : { title: "Restart", command: "kernel-lsp.restart" };
  }

  private showGpu(): void {
    const device = value("device", "auto");
    this.gpu.text = `Estimates for ${value("targetGpu", "H200")}`;
    this.gpu.detail = device === "auto" ? "runs on a GPU where there is one, else on the CPU" : `runs on ${device}`;
  }

  private showJobs(): void {
    const active = this.jobs.active;
    const [first] = active;
    this.running.busy = active.length > 0;
    this.running.text = first === undefined ? "No jobs" : active.length > 1 ? `${active.length} jobs` : first.title;
    this.running.detail = first === undefined ? undefined : `${first.percentage ?? 0} % ${first.message ?? ""}`;
    this.running.command = first === undefined ? undefined : { title: "Cancel", command: "kernel-lsp.cancel" };
  }
}
