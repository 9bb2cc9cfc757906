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

export const workspace = { isTrusted: true, asRelativePath: (uri: string) => uri.replace("file:///w/", "") };

export const lm: { selectChatModels?: (selector: object) => Promise<object[]> } = {};

export const LanguageModelChatMessage = {
  User: (content: string) => ({ role: "user", content }),
  Assistant: (content: string) => ({ role: "assistant", content }),
};

export const shown: string[] = [];

export const window = {
  showWarningMessage: (message: string) => {
    shown.push(message);
    return Promise.resolve(undefined);
  },
};

export const commands = { executeCommand: () => Promise.resolve(undefined) };

export const Uri = { parse: (uri: string) => uri };

export class McpStdioServerDefinition {
  constructor(readonly label: string, readonly command: string, readonly args: string[]) {}
}
