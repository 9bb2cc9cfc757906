// The server's life: found, started, checked, restarted. A restart that is asked for while one is under way is done
// once, after it.
import * as os from "node:os";
import * as vscode from "vscode";
import type {
  ApplyWorkspaceEditParams,
  ApplyWorkspaceEditResult,
  CloseAction,
  Executable,
  LanguageClient,
  LanguageClientOptions,
  State,
} from "vscode-languageclient/node";
import { languageModels } from "./editorModel";
import { findServer, isExecutable, isNewEnough, type Found } from "./findServer";
import { offerInstall, offerUpdate } from "./install";
import type { JobStore } from "./jobs";
import type { KeyStore } from "./keys";
import type { Logs } from "./logs";
import { METHODS, SERVER_VERSION, type CommandLine, type JobParams, type RunEventParams } from "./protocol";
import { selectedInterpreter, watchInterpreter } from "./python";
import { givenSettings, SECTION, serverPath } from "./settings";

export type ServerState = "stopped" | "starting" | "running" | "not found" | "failed";
export type Convert = (edit: ApplyWorkspaceEditParams["edit"]) => Promise<vscode.WorkspaceEdit>;
export type OnApplyEdit = (params: ApplyWorkspaceEditParams, convert: Convert) => Promise<ApplyWorkspaceEditResult>;

const LANGUAGES = ["python", "cuda-cpp", "cuda"];
export const SELECTOR = [
  ...LANGUAGES.map((language) => ({ scheme: "file", language })),
  ...LANGUAGES.map((language) => ({ scheme: "vscode-notebook-cell", language })),
];
// Values of vscode-languageclient's enumerations. Only its types are imported at the top: evaluating it takes most of
// the time that an activation may take, so it is loaded when the server starts.
const RUNNING: State.Running = 2;
const STARTING: State.Starting = 3;
const DO_NOT_RESTART: CloseAction.DoNotRestart = 1;
const RESTART: CloseAction.Restart = 2;
const RESTARTS = 4;
const RESTART_WINDOW_MS = 180_000;
const RESTART_DELAY_MS = 300;

export class Server implements vscode.Disposable {
  private static running: LanguageClient | undefined;
  private client: LanguageClient | undefined;
  private restarting: Promise<void> | undefined;
  private isRestartQueued = false;
  private deaths: number[] = [];
  private readonly changed = new vscode.EventEmitter<ServerState>();
  private readonly watching: vscode.Disposable[] = [];
  readonly onChange = this.changed.event;
  private readonly runsChanged = new vscode.EventEmitter<void>();
  /** Another program wrote a run to the archive. */
  readonly onRunsChanged = this.runsChanged.event;
  state: ServerState = "stopped";
  found: Found | undefined;
  problem = "";
  /** Decides about an edit of the server's; set before the server starts. */
  onApplyEdit: OnApplyEdit | undefined;
  /** Answers a request of the server's that asks the editor's own model, when there is a way to. */
  readonly requestHandlers = new Map<string, (params: unknown, token: vscode.CancellationToken) => Promise<unknown>>();

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly logs: Logs,
    private readonly jobs: JobStore,
    private readonly keys: KeyStore,
  ) {
    this.watching.push(
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(`${SECTION}.serverPath`)) void this.restart();
      }),
      vscode.workspace.onDidGrantWorkspaceTrust(() => this.trusted()),
    );
  }

  static async stopRunning(): Promise<void> {
    await Server.running?.stop(3000).catch(() => undefined);
  }

  get version(): string {
    return this.client?.initializeResult?.serverInfo?.version ?? "";
  }

  /** Whether the server has this command: an older one may not. */
  has(command: string): boolean {
    return this.client?.initializeResult?.capabilities.executeCommandProvider?.commands.includes(command) ?? false;
  }

  async start(): Promise<void> {
    this.set("starting");
    await new Promise((resolve) => setImmediate(resolve)); // whoever activates us goes on first
    this.found = await this.find();
    if (this.found === undefined) return;
    const library = await import("vscode-languageclient/node");
    this.logs.client.info(`starting ${this.found.program} serve (from ${this.found.origin})`);
    const client = this.create(library, this.found, await this.keys.environment());
    this.client = Server.running = client;
    client.onDidChangeState(({ newState }) => this.stateChanged(client, newState));
    client.onNotification(METHODS.jobChanged, (job: JobParams) => this.jobs.hear(job));
    client.onNotification(METHODS.runEvent, (event: RunEventParams) => this.jobs.hearEvent(event));
    client.onNotification(METHODS.typeCommand, (line: CommandLine) => typeCommand(line));
    client.onNotification(METHODS.runsChanged, () => this.runsChanged.fire());
    client.onRequest("workspace/applyEdit", (params: ApplyWorkspaceEditParams) => this.applyEdit(client, params));
    for (const [method, handler] of this.requestHandlers) client.onRequest(method, handler);
    if (this.watching.length === 2) this.watching.push(watchInterpreter(() => this.environmentChanged()));
    try {
      await client.start();
      await this.checkVersion();
    } catch (error) {
      this.fail(`the server did not start: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  async restart(): Promise<void> {
    if (this.restarting !== undefined) {
      this.isRestartQueued = true;
      return this.restarting;
    }
    this.restarting = this.restartNow();
    try {
      await this.restarting;
    } finally {
      this.restarting = undefined;
    }
    if (this.isRestartQueued) {
      this.isRestartQueued = false;
      await this.restart();
    }
  }

  /** Asks the server. Rejects when it does not run, or refuses. */
  async ask<T>(method: string, params: unknown): Promise<T> {
    if (this.client === undefined || this.client.state !== RUNNING) {
      throw new Error("the kernel-lsp server does not run: see *kernel-lsp: Show Debug Information*");
    }
    return this.client.sendRequest<T>(method, params);
  }

  /** Runs one of the server's commands. */
  async execute<T>(command: string, argument: object): Promise<T> {
    return this.ask<T>("workspace/executeCommand", { command, arguments: [argument] });
  }

  dispose(): void {
    this.watching.forEach((each) => each.dispose());
    this.changed.dispose();
    this.runsChanged.dispose();
    void this.client?.dispose(3000).catch(() => undefined);
  }

  // --- below: finding and starting

  private async find(): Promise<Found | undefined> {
    const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
    const found = await findServer({
      setting: serverPath(),
      interpreter: vscode.workspace.isTrusted && !serverPath() ? await selectedInterpreter(folder) : undefined,
      searchPath: process.env["PATH"] ?? "",
      home: os.homedir(),
      isExecutable,
    });
    if (found.kind === "found") return found;
    this.problem = `looked for ${found.looked.join(", ")}`;
    this.logs.client.warn(`no server: ${this.problem}`);
    this.set("not found");
    void offerInstall(serverPath(), folder, () => this.restart());
    return undefined;
  }

  private create(library: typeof import("vscode-languageclient/node"), found: Found, keys: Record<string, string>): LanguageClient {
    const run: Executable = {
      command: found.program,
      args: ["serve"],
      options: { env: { ...process.env, ...keys }, cwd: vscode.workspace.workspaceFolders?.[0]?.uri.fsPath },
    };
    const logs = this.logs;
    const options: LanguageClientOptions = {
      documentSelector: SELECTOR,
      outputChannel: logs.server,
      get traceOutputChannel() {
        return logs.trace;
      },
      revealOutputChannelOn: library.RevealOutputChannelOn.Never,
      initializationOptions: {
        trusted: vscode.workspace.isTrusted,
        settings: givenSettings(),
      },
      middleware: {
        workspace: {
          // Defaults are not sent: they would hide what a pyproject.toml says.
          configuration: ({ items }) =>
            items.map((item) => givenSettings(item.scopeUri === undefined ? undefined : vscode.Uri.parse(item.scopeUri))),
        },
      },
      errorHandler: {
        error: () => ({ action: library.ErrorAction.Continue, handled: true }),
        closed: () => this.closed(),
      },
    };
    const client = new library.LanguageClient(SECTION, "kernel-lsp", run, options);
    client.registerFeature({
      fillClientCapabilities: (capabilities) => {
        const wanted = { jobs: true, events: true, terminal: true, languageModel: languageModels() !== undefined };
        capabilities.experimental = { ...(capabilities.experimental as object | undefined), kernelLsp: wanted };
      },
      initialize: () => undefined,
      getState: () => ({ kind: "static" }),
      clear: () => undefined,
    });
    return client;
  }

  private async restartNow(): Promise<void> {
    const client = this.client;
    this.client = Server.running = undefined;
    await client?.dispose(3000).catch((error) => this.logs.client.warn(`stopping: ${String(error)}`));
    this.jobs.clear();
    await this.start();
  }

  private async checkVersion(): Promise<void> {
    if (isNewEnough(this.version, SERVER_VERSION)) return;
    await offerUpdate(this.version, SERVER_VERSION, vscode.workspace.workspaceFolders?.[0]?.uri, () => this.restart());
  }

  // --- below: what happens meanwhile

  /** A server that dies is started again, but not for ever. */
  private closed(): { action: CloseAction; message?: string; handled?: boolean } {
    const now = Date.now();
    this.deaths = [...this.deaths.filter((when) => now - when < RESTART_WINDOW_MS), now];
    this.jobs.clear();
    this.logs.client.warn(`the server ended (${this.deaths.length} times in ${RESTART_WINDOW_MS / 60_000} minutes)`);
    if (this.deaths.length <= RESTARTS) return { action: RESTART, handled: true };
    this.fail("the server keeps ending");
    return { action: DO_NOT_RESTART, handled: true };
  }

  private fail(problem: string): void {
    this.problem = problem;
    this.logs.client.error(problem);
    this.set("failed");
    void vscode.window.showErrorMessage(`kernel-lsp: ${problem}`, "Show Server Logs", "Restart").then((chosen) => {
      if (chosen === "Restart") {
        this.deaths = [];
        void this.restart();
      } else if (chosen !== undefined) {
        this.logs.server.show();
      }
    });
  }

  private stateChanged(client: LanguageClient, state: State): void {
    if (client !== this.client || this.state === "failed" && state !== RUNNING) return;
    this.set(state === RUNNING ? "running" : state === STARTING ? "starting" : "stopped");
  }

  private set(state: ServerState): void {
    this.state = state;
    void vscode.commands.executeCommand("setContext", "kernel-lsp.serverRuns", state === "running");
    void vscode.commands.executeCommand("setContext", "kernel-lsp.state", state);
    this.changed.fire(state);
  }

  private trusted(): void {
    if (this.client?.state === RUNNING) {
      void this.client.sendNotification(METHODS.didChangeTrust, { trusted: true });
    } else {
      void this.restart(); // an environment in the folder counts from now on
    }
  }

  private environmentChanged(): void {
    if (this.found?.origin !== "setting") {
      setTimeout(() => void this.restart(), RESTART_DELAY_MS);
    }
  }

  private async applyEdit(client: LanguageClient, params: ApplyWorkspaceEditParams): Promise<ApplyWorkspaceEditResult> {
    const convert: Convert = (edit) => client.protocol2CodeConverter.asWorkspaceEdit(edit);
    return this.onApplyEdit === undefined ? { applied: false } : this.onApplyEdit(params, convert);
  }

  get folder(): vscode.Uri | undefined {
    return vscode.workspace.workspaceFolders?.[0]?.uri;
  }

  get extensionUri(): vscode.Uri {
    return this.context.extensionUri;
  }
}

/** Typed and not run: the user names the program first. */
function typeCommand({ command, folder }: CommandLine): void {
  const terminal = vscode.window.createTerminal({ name: "kernel-lsp", cwd: folder });
  terminal.show();
  terminal.sendText(command, false);
}
