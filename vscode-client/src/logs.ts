// Three channels: what the client does, what the server logs, and the messages between them.
import * as vscode from "vscode";

export class Logs implements vscode.Disposable {
  readonly client = vscode.window.createOutputChannel("kernel-lsp", { log: true });
  readonly server = vscode.window.createOutputChannel("kernel-lsp server", { log: true });
  private traceChannel: vscode.OutputChannel | undefined;

  /** Only for someone who traces. */
  get trace(): vscode.OutputChannel {
    this.traceChannel ??= vscode.window.createOutputChannel("kernel-lsp trace");
    return this.traceChannel;
  }

  dispose(): void {
    this.client.dispose();
    this.server.dispose();
    this.traceChannel?.dispose();
  }
}
