// Stands in for the `vscode` module in unit tests: as much of it as the tested files evaluate.
export class EventEmitter<T> {
  private readonly listeners = new Set<(event: T) => void>();
  readonly event = (listener: (event: T) => void) => {
    this.listeners.add(listener);
    return { dispose: () => this.listeners.delete(listener) };
  };
  fire(event: T): void {
    this.listeners.forEach((listener) => listener(event));
  }
  dispose(): void {
    this.listeners.clear();
  }
}

interface Folder {
  uri: { fsPath: string };
}

export const workspace = {
  isTrusted: true,
  workspaceFolders: undefined as Folder[] | undefined,
  asRelativePath: (uri: string) => uri.replace("file:///w/", ""),
  /** What the user has set; nothing here ever writes it, which `written` shows. */
  set: {} as Record<string, unknown>,
  written: [] as string[],
  getConfiguration: () => ({
    get: (name: string, otherwise?: unknown) => workspace.set[name] ?? otherwise,
    inspect: (name: string) => ({ key: name, globalValue: workspace.set[name] }),
    update: (name: string, value: unknown) => Promise.resolve(void workspace.written.push(`${name}=${String(value)}`)),
  }),
  onDidChangeConfiguration: () => ({ dispose: () => undefined }),
  onDidGrantWorkspaceTrust: () => ({ dispose: () => undefined }),
};

export const extensions = { getExtension: () => undefined };

export const lm: { selectChatModels?: (selector: object) => Promise<object[]> } = {};

export const LanguageModelChatMessage = {
  User: (content: string) => ({ role: "user", content }),
  Assistant: (content: string) => ({ role: "assistant", content }),
};

export const shown: string[] = [];

/** What the user answers next, to messages and to inputs, in order; nothing after the last. */
export const answers: (string | undefined)[] = [];

function show(message: string): Promise<string | undefined> {
  shown.push(message);
  return Promise.resolve(answers.shift());
}

export const window = {
  showWarningMessage: show,
  showErrorMessage: show,
  showQuickPick: () => Promise.resolve(answers.shift()),
  showInputBox: () => Promise.resolve(answers.shift()),
};

export const executed: unknown[][] = [];

export const commands = {
  executeCommand: (...command: unknown[]) => {
    executed.push(command);
    return Promise.resolve(undefined);
  },
};

export class ProcessExecution {
  constructor(readonly process: string, readonly args: string[]) {}
}

export class Task {
  constructor(
    readonly definition: object, readonly scope: number, readonly name: string, readonly source: string, readonly execution: ProcessExecution,
  ) {}
}

export const TaskScope = { Workspace: 2 };

const ended = new EventEmitter<{ execution: object; exitCode: number }>();

export const tasks = {
  /** The command of each task that was started. All end with `exitCode`. */
  started: [] as string[][],
  exitCode: 0,
  executeTask: (task: Task) => {
    tasks.started.push([task.execution.process, ...task.execution.args]);
    const execution = { task };
    setTimeout(() => ended.fire({ execution, exitCode: tasks.exitCode }));
    return Promise.resolve(execution);
  },
  onDidEndTaskProcess: ended.event,
  onDidEndTask: () => ({ dispose: () => undefined }),
};

export const Uri = { parse: (uri: string) => uri };

export class Disposable {
  constructor(readonly dispose: () => void) {}
}

export class McpStdioServerDefinition {
  constructor(readonly label: string, readonly command: string, readonly args: string[]) {}
}
