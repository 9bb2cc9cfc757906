// The Kernels view: what can be optimized, what a recorded run spends its time on, and the runs with their candidates by lineage.
import * as path from "node:path";
import * as vscode from "vscode";
import type { JobStore } from "./jobs";
import {
  METHODS,
  type HotSpotItem,
  type HotSpotsResult,
  type JobParams,
  type ReportResult,
  type RunItem,
  type RunsResult,
  type TargetItem,
  type TargetsResult,
} from "./protocol";
import type { Server } from "./server";

const QUIET_MS = 400;
const RECORDINGS = "**/.kernel-lsp/recorded.json";

export type TargetNode = { kind: "target"; target: TargetItem };
export type HotSpotNode = { kind: "hotSpot"; target: HotSpotItem };
export type JobNode = { kind: "job"; job: JobParams };
export type RunNode = { kind: "run"; run: RunItem };
interface Candidate {
  candidate_id: string;
  generation: number;
  proposer: string;
  description: string;
  parents: string[];
  verdicts: Verdict[];
}
interface Verdict {
  outcome: { kind: string };
  measurement: { time_us: number } | null;
  estimate: { time_us: number } | null;
}
export type CandidateNode = { kind: "candidate"; candidate: Candidate; run: RunItem; children: CandidateNode[] };
type RunsNode = JobNode | RunNode | CandidateNode;

export class KernelsView implements vscode.Disposable {
  private readonly targets: Targets;
  private readonly hotSpots: HotSpots;
  private readonly runs: Runs;
  private readonly subscriptions: vscode.Disposable[];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly server: Server, jobs: JobStore) {
    this.targets = new Targets(server);
    this.hotSpots = new HotSpots(server);
    this.runs = new Runs(server, jobs);
    const recordings = vscode.workspace.createFileSystemWatcher(RECORDINGS);
    this.subscriptions = [
      vscode.window.createTreeView("kernel-lsp.targets", { treeDataProvider: this.targets }),
      vscode.window.createTreeView("kernel-lsp.hotSpots", { treeDataProvider: this.hotSpots }),
      recordings,
      ...[recordings.onDidCreate, recordings.onDidChange, recordings.onDidDelete].map((on) => on(() => this.refreshSoon())),
      vscode.window.createTreeView("kernel-lsp.runs", { treeDataProvider: this.runs }),
      server.onChange((state) => state === "running" && this.refresh()),
      server.onRunsChanged(() => this.refreshSoon()),
      jobs.onChange((job) => this.jobChanged(job)),
      vscode.workspace.onDidSaveTextDocument((document) => document.languageId === "python" && this.refreshSoon()),
      vscode.workspace.onDidGrantWorkspaceTrust(() => this.refreshSoon()),
    ];
  }

  refresh(): void {
    this.targets.changed.fire(undefined);
    this.hotSpots.changed.fire(undefined);
    this.runs.changed.fire(undefined);
  }

  /** The runs that the view knows, newest first. */
  async knownRuns(): Promise<RunItem[]> {
    return runsOf(this.server);
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.subscriptions.forEach((each) => each.dispose());
  }

  private refreshSoon(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), QUIET_MS);
  }

  /** While a job goes on only its own line changes; its end may have brought a run. */
  private jobChanged(job: JobParams | undefined): void {
    const hasEnded = job === undefined || !["queued", "running"].includes(job.state);
    if (hasEnded) this.refreshSoon();
    else this.runs.jobChanged(job);
  }
}

class Targets implements vscode.TreeDataProvider<TargetNode> {
  readonly changed = new vscode.EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;

  constructor(private readonly server: Server) {}

  async getChildren(node?: TargetNode): Promise<TargetNode[]> {
    if (node !== undefined || this.server.state !== "running") return [];
    const found: TargetItem[] = [];
    for (const folder of vscode.workspace.workspaceFolders ?? []) {
      found.push(...(await this.server.ask<TargetsResult>(METHODS.targets, { uri: folder.uri.toString() })).targets);
    }
    void vscode.commands.executeCommand("setContext", "kernel-lsp.hasTargets", found.length > 0);
    counted("targets", found);
    return found.map((target) => ({ kind: "target", target }));
  }

  getTreeItem({ target }: TargetNode): vscode.TreeItem {
    const uri = vscode.Uri.parse(target.uri);
    const item = new vscode.TreeItem(target.symbol);
    item.id = `${target.uri}::${target.symbol}`;
    item.description = vscode.workspace.asRelativePath(uri);
    item.tooltip = target.inputs || "Input shapes unknown: *Optimize to CUDA* infers them.";
    item.iconPath = new vscode.ThemeIcon(target.isModule ? "symbol-class" : "symbol-function");
    item.contextValue = "target";
    const selection = new vscode.Range(target.line, 0, target.line, 0);
    item.command = { title: "Open", command: "vscode.open", arguments: [uri, { selection }] };
    return item;
  }
}

class HotSpots implements vscode.TreeDataProvider<HotSpotNode> {
  readonly changed = new vscode.EventEmitter<undefined>();
  readonly onDidChangeTreeData = this.changed.event;

  constructor(private readonly server: Server) {}

  async getChildren(node?: HotSpotNode): Promise<HotSpotNode[]> {
    if (node !== undefined || this.server.state !== "running") return [];
    const found: HotSpotNode[] = [];
    for (const folder of vscode.workspace.workspaceFolders ?? []) {
      const { spots, problem } = await this.server.ask<HotSpotsResult>(METHODS.hotSpots, { uri: folder.uri.toString() });
      if (problem) void vscode.window.showWarningMessage(`kernel-lsp: ${problem}`);
      found.push(...spots.map((target): HotSpotNode => ({ kind: "hotSpot", target })));
    }
    counted("hotSpots", found);
    return found.sort((a, b) => b.target.gain - a.target.gain);
  }

  getTreeItem({ target }: HotSpotNode): vscode.TreeItem {
    const uri = vscode.Uri.parse(target.uri);
    const item = new vscode.TreeItem(target.symbol);
    item.id = `hot spot ${target.uri}::${target.symbol}`;
    item.description = describeHotSpot(target);
    item.tooltip = `${vscode.workspace.asRelativePath(uri)}\n${target.calls} calls, most often ${target.inputs}`;
    item.iconPath = new vscode.ThemeIcon("flame");
    item.contextValue = "hotSpot";
    const selection = new vscode.Range(target.line, 0, target.line, 0);
    item.command = { title: "Open", command: "vscode.open", arguments: [uri, { selection }] };
    return item;
  }
}

class Runs implements vscode.TreeDataProvider<RunsNode> {
  readonly changed = new vscode.EventEmitter<RunsNode | undefined>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly jobNodes = new Map<string, JobNode>();

  constructor(private readonly server: Server, private readonly jobs: JobStore) {}

  jobChanged(job: JobParams): void {
    const node = this.jobNodes.get(job.job);
    if (node === undefined) {
      this.changed.fire(undefined);
    } else {
      node.job = job;
      this.changed.fire(node);
    }
  }

  async getChildren(node?: RunsNode): Promise<RunsNode[]> {
    if (node === undefined) return this.roots();
    if (node.kind === "run") return this.candidates(node.run);
    return node.kind === "candidate" ? node.children : [];
  }

  getTreeItem(node: RunsNode): vscode.TreeItem {
    if (node.kind === "job") return jobItem(node.job);
    return node.kind === "run" ? runItem(node.run) : candidateItem(node);
  }

  private async roots(): Promise<RunsNode[]> {
    if (this.server.state !== "running") return [];
    this.jobNodes.clear();
    for (const job of this.jobs.active) this.jobNodes.set(job.job, { kind: "job", job });
    const active = new Set(this.jobs.active.map((job) => job.run));
    const runs = (await runsOf(this.server)).filter((run) => !active.has(run.run));
    const found = [...this.jobNodes.values(), ...runs.map((run): RunNode => ({ kind: "run", run }))];
    counted("runs", found);
    return found;
  }

  private async candidates(run: RunItem): Promise<CandidateNode[]> {
    const report = await this.server.ask<ReportResult>(METHODS.report, { uri: run.uri, run: run.run });
    return byLineage(report.data["candidates"] as Candidate[], run);
  }
}

/** Every candidate below its first parent; those without one at the top. */
export function byLineage(candidates: Candidate[], run: RunItem): CandidateNode[] {
  const nodes = new Map(
    candidates.map((candidate): [string, CandidateNode] => [
      candidate.candidate_id,
      { kind: "candidate", candidate, run, children: [] },
    ]),
  );
  const roots: CandidateNode[] = [];
  for (const node of nodes.values()) {
    const parent = node.candidate.parents.find((id) => nodes.has(id) && id !== node.candidate.candidate_id);
    (parent === undefined ? roots : nodes.get(parent)!.children).push(node);
  }
  return roots;
}

/** `23 % of a step, saves up to 23 %`. */
export function describeHotSpot(spot: HotSpotItem): string {
  const percent = (part: number) => `${Number((part * 100).toPrecision(2))} %`;
  const how = spot.speedup ? ` (${Number(spot.speedup.toPrecision(3))}x, ${spot.kind})` : "";
  const atMost = !spot.speedup || spot.kind === "roofline" ? "up to " : "";
  return `${percent(spot.share)} of a step, saves ${atMost}${percent(spot.gain)}${how}`;
}

// --- below

/** A view says that there is nothing once that is known, not while it loads. */
function counted(view: string, found: unknown[]): void {
  void vscode.commands.executeCommand("setContext", `kernel-lsp.no.${view}`, found.length === 0);
}

async function runsOf(server: Server): Promise<RunItem[]> {
  const found = new Map<string, RunItem>();
  for (const folder of vscode.workspace.workspaceFolders ?? []) {
    const { runs } = await server.ask<RunsResult>(METHODS.runs, { uri: folder.uri.toString() });
    runs.forEach((run) => found.set(run.run, run));
  }
  return [...found.values()];
}

function jobItem(job: JobParams): vscode.TreeItem {
  const item = new vscode.TreeItem(job.title);
  item.id = `job ${job.job}`;
  item.description = job.state === "queued" ? "queued" : `${job.percentage ?? 0} % ${job.message ?? ""}`;
  item.tooltip = item.description;
  item.iconPath = new vscode.ThemeIcon(job.state === "queued" ? "clock" : "sync~spin");
  item.contextValue = "job";
  return item;
}

function runItem(run: RunItem): vscode.TreeItem {
  const item = new vscode.TreeItem(run.target, vscode.TreeItemCollapsibleState.Collapsed);
  item.id = `run ${run.run}`;
  item.description = run.result || run.status;
  item.tooltip = `${run.run}, ${run.status}, ${run.started}\n${run.device}\n${run.result}`;
  item.contextValue = run.hasKernel ? "finished" : run.status === "finished" ? "empty" : "resumable";
  item.iconPath = new vscode.ThemeIcon(run.hasKernel ? "pass" : run.status === "finished" ? "circle-slash" : "debug-pause");
  item.command = { title: "Open the Report", command: "kernel-lsp.openReport", arguments: [{ kind: "run", run }] };
  return item;
}

function candidateItem(node: CandidateNode): vscode.TreeItem {
  const { candidate } = node;
  const verdict = candidate.verdicts.at(-1);
  const number = verdict?.measurement ?? verdict?.estimate;
  const isRight = verdict?.outcome.kind === "correct";
  const state = node.children.length ? vscode.TreeItemCollapsibleState.Expanded : vscode.TreeItemCollapsibleState.None;
  const item = new vscode.TreeItem(candidate.candidate_id.slice(0, 8), state);
  item.id = `candidate ${node.run.run} ${candidate.candidate_id}`;
  item.description = isRight && number ? `${Number(number.time_us.toPrecision(3))} µs, ${candidate.description}` : verdict?.outcome.kind;
  item.tooltip = `${candidate.proposer}, generation ${candidate.generation + 1}\n${candidate.description}`;
  item.iconPath = new vscode.ThemeIcon(isRight ? "check" : verdict === undefined ? "loading" : "error");
  item.command = { title: "Show", command: "kernel-lsp.openReport", arguments: [node] };
  return item;
}

export function fileName(uri: string): string {
  return path.basename(vscode.Uri.parse(uri).fsPath);
}
