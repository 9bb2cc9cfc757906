// Written by scripts/write_editor_files.py from kernel_lsp/server/protocol/messages.py. Do not edit.

export const SERVER_VERSION = "0.1.0";

export const GPUS: readonly string[] = ["H200", "H100 SXM", "H100 PCIe", "A100 40GB", "A100 80GB", "A100 80GB PCIe", "A10", "L4", "L40S", "V100", "T4", "RTX 3090", "RTX 4090", "RTX 5090", "RTX 6000 Ada", "B200"];

export const COMMANDS = {
  optimize: "kernelLsp.optimize",
  optimizeWithBackward: "kernelLsp.optimizeWithBackward",
  optimizeLines: "kernelLsp.optimizeLines",
  addShapes: "kernelLsp.addShapes",
  check: "kernelLsp.check",
  measure: "kernelLsp.measure",
  addPlan: "kernelLsp.addPlan",
  profile: "kernelLsp.profile",
  estimate: "kernelLsp.estimate",
  cancel: "kernelLsp.cancel",
  useNow: "kernelLsp.useNow",
  resume: "kernelLsp.resume",
  showKernel: "kernelLsp.showKernel",
  compare: "kernelLsp.compare",
  report: "kernelLsp.report",
  useEverywhere: "kernelLsp.useEverywhere",
  revertEverywhere: "kernelLsp.revertEverywhere",
  explain: "kernelLsp.explain",
} as const;

export const METHODS = {
  didChangeTrust: "kernelLsp/didChangeTrust",
  status: "kernelLsp/status",
  jobChanged: "kernelLsp/jobChanged",
  runEvent: "kernelLsp/runEvent",
  runs: "kernelLsp/runs",
  runsChanged: "kernelLsp/runsChanged",
  targets: "kernelLsp/targets",
  hotSpots: "kernelLsp/hotSpots",
  report: "kernelLsp/report",
  machineCode: "kernelLsp/machineCode",
  typeCommand: "kernelLsp/typeCommand",
  completeChat: "kernelLsp/completeChat",
} as const;

/** Tell the server whether the user trusts the workspace. Until then only explicit commands run code. */
export interface TrustParams {
  trusted: boolean;
}

/** No parameters. */
export interface StatusParams {
}

/** Server status: its jobs, and the ids of its helper processes (0 for none). */
export interface StatusResult {
  jobs: (JobParams)[];
  nDocuments: number;
  trusted: boolean | null;
  analystPid: number;
  enginePids: (number)[];
}

/** State of a job. `run` is empty until it has one, `symbol` if it has no target. Sent only to a client with the capability ``experimental.kernelLsp.jobs``. */
export interface JobParams {
  job: string;
  kind: "optimize" | "optimize_lines" | "resume" | "check" | "profile" | "estimate" | "infer_inputs";
  state: "queued" | "running" | "finished" | "failed" | "cancelled";
  title: string;
  percentage?: number | null;
  message?: string;
  bestUs?: number | null;
  costUsd?: number;
  run?: string;
  uri?: string;
  symbol?: string;
}

/** Event of a run, as described in `kernel_lsp/core/event.py`. Sent only to a client with the capability ``experimental.kernelLsp.events``. */
export interface RunEventParams {
  job: string;
  run: string;
  event: { [name: string]: unknown };
}

/** File or folder of the workspace to query. */
export interface FolderParams {
  uri: string;
}

/** The runs of a workspace. */
export interface RunsResult {
  runs: (RunItem)[];
}

/** One run of the archive, newest first. `result` describes its outcome, empty while there is none. */
export interface RunItem {
  run: string;
  target: string;
  uri: string;
  symbol: string;
  status: "queued" | "running" | "interrupted" | "finished" | "failed";
  started: string;
  device: string;
  hasKernel: boolean;
  result: string;
}

/** Targets below a folder. `is_complete` is false when the scan stopped at its file limit. */
export interface TargetsResult {
  targets: (TargetItem)[];
  isComplete: boolean;
}

/** Code in a file that can be optimized. `line` is 0-based; `inputs` describes its shapes, empty when unknown. */
export interface TargetItem {
  uri: string;
  symbol: string;
  isModule: boolean;
  line: number;
  inputs: string;
}

/** Recorded targets of a workspace, the largest gain first. `command` and `date` are those of the recorded run, empty without one. `problem` says why a recording cannot be read. */
export interface HotSpotsResult {
  spots: (HotSpotItem)[];
  command?: string;
  date?: string;
  problem?: string;
}

/** A recorded target. `share` is its part of a step, `gain` the part that its kernel saves; without a known `speedup` (0) the most that one could save. `line` is 0-based. */
export interface HotSpotItem {
  uri: string;
  symbol: string;
  line: number;
  share: number;
  gain: number;
  speedup: number;
  kind: string;
  calls: number;
  inputs: string;
}

/** Argument of commands on a run. ``last`` is the newest of the workspace of `uri`. */
export interface RunArguments {
  uri: string;
  run?: string;
}

/** Report of a run: `data` as printed by ``kernel-lsp report RUN --json``, and the HTML page that shows it. */
export interface ReportResult {
  run: string;
  data: { [name: string]: unknown };
  html: string;
}

/** Function at a 0-based line of an open kernel file. `architecture` is one such as ``sm_90``; by default that of the target GPU. */
export interface MachineCodeParams {
  uri: string;
  line: number;
  form: "ptx" | "sass";
  architecture?: string;
}

/** Code of one function. `lines` has the file's 0-based line for each line of `text`, -1 for none. The answer is the same for every line from `first_line` to `last_line`. `architectures` are those to choose from. `problem` says why the text is empty, and what to do. */
export interface MachineCodeResult {
  text: string;
  lines: (number)[];
  function: string;
  architecture: string;
  firstLine: number;
  lastLine: number;
  architectures: (string)[];
  problem?: string;
}

/** A shell command to offer, and the folder to run it in. */
export interface CommandLine {
  command: string;
  folder: string;
}

/** Prompt of a run for the editor's own model. `purpose` is ``translate``, ``propose``, ``repair``, ``reformat`` or ``judge``. `temperature` and `max_tokens` are hints: not every editor can pass them on. */
export interface ChatParams {
  job: string;
  purpose: string;
  messages: (ChatMessage)[];
  temperature: number;
  maxTokens: number;
}

/** One message of a chat. */
export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Reply to the prompt. `text` is the whole reply, empty on failure; `message` then gives the reason. The run retries after ``quota`` and ``failed``, a few times with increasing delays. Token counts are 0 if unknown. */
export interface ChatResult {
  outcome: "replied" | "no_model" | "no_consent" | "quota" | "refused" | "cancelled" | "failed";
  model?: string;
  text?: string;
  message?: string;
  nPromptTokens?: number;
  nReplyTokens?: number;
}

/** Argument of commands on a target. `kernel` is the URI of a `.cu` file from which `optimize` starts. */
export interface TargetArguments {
  uri: string;
  symbol: string;
  kernel?: string;
}

/** Immediate reply of a command that starts a job. */
export interface JobStarted {
  job: string;
}

/** Argument of `optimizeLines`: whole statements of a target, as 0-based, inclusive lines. */
export interface LinesArguments {
  uri: string;
  symbol: string;
  firstLine: number;
  lastLine: number;
}

/** Argument of commands on a kernel file. */
export interface DocumentArguments {
  uri: string;
}

/** Argument of `addPlan`: a kernel file, and a 0-based line of the kernel to plan, by default the last launched one. */
export interface PlanArguments {
  uri: string;
  line?: number;
}

/** Argument of `cancel` and `useNow`: the newest job by default, or the newest with a verified kernel. */
export interface JobArguments {
  job?: string | null;
}

/** Argument of `explain`: a finding's code, e.g. ``KL101`` or ``out-of-bounds-read``. */
export interface ExplainArguments {
  code: string;
}
