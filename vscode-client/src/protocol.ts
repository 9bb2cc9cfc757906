// Written by scripts/write_editor_files.py from kernel_lsp/server/protocol/messages.py. Do not edit.

export const SERVER_VERSION = "0.1.0";

export const GPUS: readonly string[] = ["H200", "H100 SXM", "H100 PCIe", "A100 40GB", "A100 80GB", "A100 80GB PCIe", "A10", "L4", "L40S", "V100", "T4", "RTX 3090", "RTX 4090", "RTX 5090", "RTX 6000 Ada", "B200"];

export const COMMANDS = {
  optimize: "kernelLsp.optimize",
  optimizeWithBackward: "kernelLsp.optimizeWithBackward",
  optimizeLines: "kernelLsp.optimizeLines",
  check: "kernelLsp.check",
  measure: "kernelLsp.measure",
  profile: "kernelLsp.profile",
  estimate: "kernelLsp.estimate",
  cancel: "kernelLsp.cancel",
  resume: "kernelLsp.resume",
  showKernel: "kernelLsp.showKernel",
  compare: "kernelLsp.compare",
  report: "kernelLsp.report",
  explain: "kernelLsp.explain",
} as const;

export const METHODS = {
  didChangeTrust: "kernelLsp/didChangeTrust",
  status: "kernelLsp/status",
  jobChanged: "kernelLsp/jobChanged",
  runEvent: "kernelLsp/runEvent",
  runs: "kernelLsp/runs",
  targets: "kernelLsp/targets",
  report: "kernelLsp/report",
  completeChat: "kernelLsp/completeChat",
} as const;

/** Whether the user trusts the workspace. Until a client says so, nothing runs unless it is asked for. */
export interface TrustParams {
  trusted: boolean;
}

/** Nothing is asked. */
export interface StatusParams {
}

/** What the server is doing: its jobs, and its helper processes (0 for none). */
export interface StatusResult {
  jobs: (JobParams)[];
  nDocuments: number;
  trusted: boolean | null;
  analystPid: number;
  enginePids: (number)[];
}

/** Where a job is. `run` is empty until it has one, and `symbol` where it is about no target. Sent only to a client whose capabilities have ``experimental.kernelLsp.jobs``. */
export interface JobParams {
  job: string;
  kind: "optimize" | "optimize_lines" | "resume" | "check" | "profile" | "estimate";
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

/** What a run told: an event as `kernel_lsp/core/event.py` describes it. Sent only to a client whose capabilities have ``experimental.kernelLsp.events``. */
export interface RunEventParams {
  job: string;
  run: string;
  event: { [name: string]: unknown };
}

/** A file or folder of the workspace that the question is about. */
export interface FolderParams {
  uri: string;
}

/** The runs of a workspace. */
export interface RunsResult {
  runs: (RunItem)[];
}

/** One run of the archive, newest first. `result` is its end in words, empty while there is none. */
export interface RunItem {
  run: string;
  target: string;
  uri: string;
  symbol: string;
  status: "running" | "interrupted" | "finished" | "failed";
  started: string;
  device: string;
  hasKernel: boolean;
  result: string;
}

/** The targets below a folder. `is_complete` is false when there were more files than are looked at. */
export interface TargetsResult {
  targets: (TargetItem)[];
  isComplete: boolean;
}

/** Something in a file that can be optimized. `line` is 0-based; `inputs` are its shapes, empty when none are said. */
export interface TargetItem {
  uri: string;
  symbol: string;
  isModule: boolean;
  line: number;
  inputs: string;
}

/** The argument of commands on a run. ``last`` is the newest of the workspace of `uri`. */
export interface RunArguments {
  uri: string;
  run?: string;
}

/** A run's report: `data` as ``kernel-lsp report RUN --json`` prints it, and the page that shows it. */
export interface ReportResult {
  run: string;
  data: { [name: string]: unknown };
  html: string;
}

/** What a run asks the editor's own model. `purpose` is ``translate``, ``propose``, ``repair``, ``reformat`` or ``judge``. `temperature` and `max_tokens` are wishes: not every editor can pass them on. */
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

/** How that ended. `text` is the whole reply, however it came; otherwise `message` says why there is none. The run asks again after ``quota`` and ``failed``, a few times, and later each time. Tokens are 0 where they were not counted. */
export interface ChatResult {
  outcome: "replied" | "no_model" | "no_consent" | "quota" | "refused" | "cancelled" | "failed";
  model?: string;
  text?: string;
  message?: string;
  nPromptTokens?: number;
  nReplyTokens?: number;
}

/** The argument of commands on a target. `kernel` is the URI of a `.cu` file that `optimize` begins from. */
export interface TargetArguments {
  uri: string;
  symbol: string;
  kernel?: string;
}

/** What a command that starts a job answers, at once. */
export interface JobStarted {
  job: string;
}

/** The argument of `optimizeLines`: whole statements of a target, by 0-based lines, both inclusive. */
export interface LinesArguments {
  uri: string;
  symbol: string;
  firstLine: number;
  lastLine: number;
}

/** The argument of commands on a kernel file. */
export interface DocumentArguments {
  uri: string;
}

/** The argument of `cancel`: without it the newest job. */
export interface JobArguments {
  job?: string | null;
}

/** The argument of `explain`: a finding's code, e.g. ``KL101`` or ``out-of-bounds-read``. */
export interface ExplainArguments {
  code: string;
}
