// A run's report in a panel: the same page as `kernel-lsp report RUN --html`, following the run while it goes on.
import * as vscode from "vscode";
import type { JobStore } from "./jobs";
import { METHODS, type ReportResult, type RunEventParams } from "./protocol";
import type { Review, ReviewDocuments, Reviews } from "./review";
import type { Server } from "./server";

/** Events after which the whole report is fetched: it has the texts and verdicts that events leave out. */
const WORTH_A_REPORT = new Set(["generation_started", "run_finished"]);
const BETWEEN_REPORTS_MS = 1000;

export class RunPanels implements vscode.Disposable {
  private readonly panels = new Map<string, RunPanel>();
  private readonly following: vscode.Disposable;
  reviews: Reviews | undefined;

  constructor(private readonly server: Server, jobs: JobStore, private readonly documents: ReviewDocuments) {
    this.following = jobs.onRunEvent((event) => this.panels.get(event.run)?.hear(event));
  }

  /** Opens the panel of a run, or shows the one that is open. `uri` is of a file of the run's workspace. */
  async open(uri: string, run: string, options: { preserveFocus?: boolean; candidate?: string } = {}): Promise<RunPanel> {
    const report = await this.server.ask<ReportResult>(METHODS.report, { uri, run });
    let panel = this.panels.get(report.run);
    if (panel === undefined) {
      panel = new RunPanel(this.server, uri, report, options.preserveFocus ?? false);
      this.panels.set(report.run, panel);
      panel.onDispose(() => this.panels.delete(report.run));
      panel.onMessage((type) => void this.reviews?.act(report.run, type));
    } else {
      panel.show(report, options.preserveFocus ?? false);
    }
    if (options.candidate !== undefined) panel.post({ type: "choose", candidate: options.candidate });
    return panel;
  }

  /** Shows or hides the bar with Apply and Discard. */
  review(run: string, review: Review | undefined): void {
    this.panels.get(run)?.post({ type: "review", review: review === undefined ? null : { label: review.label } });
  }

  dispose(): void {
    this.following.dispose();
    for (const panel of this.panels.values()) panel.dispose();
    this.documents.dispose();
  }
}

export class RunPanel implements vscode.Disposable {
  private readonly panel: vscode.WebviewPanel;
  private readonly messages = new vscode.EventEmitter<string>();
  private waiting: object[] | undefined = [];
  private isFetching = false;
  private isDisposed = false;
  readonly onMessage = this.messages.event;
  readonly onDispose: vscode.Event<void>;

  constructor(private readonly server: Server, private readonly uri: string, report: ReportResult, preserveFocus: boolean) {
    const column = { viewColumn: vscode.ViewColumn.Beside, preserveFocus };
    const options = { enableScripts: true, localResourceRoots: [], retainContextWhenHidden: true };
    this.panel = vscode.window.createWebviewPanel("kernel-lsp.run", `Run ${report.run}`, column, options);
    this.onDispose = this.panel.onDidDispose;
    this.panel.onDidDispose(() => {
      this.isDisposed = true;
      this.messages.dispose();
    });
    this.panel.webview.onDidReceiveMessage((message: { type: string }) => this.receive(message.type));
    this.panel.webview.html = report.html;
    this.run = report.run;
  }

  readonly run: string;

  show(report: ReportResult, preserveFocus: boolean): void {
    this.panel.reveal(undefined, preserveFocus);
    this.post({ type: "report", report: report.data });
  }

  /** Sends it as soon as the page hears. */
  post(message: object): void {
    if (this.waiting !== undefined) this.waiting.push(message);
    else if (!this.isDisposed) void this.panel.webview.postMessage(message);
  }

  hear({ event }: RunEventParams): void {
    this.post({ type: "event", event });
    if (WORTH_A_REPORT.has(String(event["kind"]))) void this.fetch();
  }

  dispose(): void {
    this.panel.dispose();
  }

  private receive(type: string): void {
    if (type === "ready") {
      const waiting = this.waiting ?? [];
      this.waiting = undefined;
      waiting.forEach((message) => this.post(message));
    } else {
      this.messages.fire(type);
    }
  }

  /** One at a time, and not more often than a person can read. */
  private async fetch(): Promise<void> {
    if (this.isFetching) return;
    this.isFetching = true;
    await new Promise((resolve) => setTimeout(resolve, BETWEEN_REPORTS_MS));
    this.isFetching = false;
    try {
      const report = await this.server.ask<ReportResult>(METHODS.report, { uri: this.uri, run: this.run });
      this.post({ type: "report", report: report.data });
    } catch {
      // The server has just gone: what the page shows stays true of what it knew.
    }
  }
}
