// Wires the parts together. Nothing here takes long: the server starts beside.
import * as vscode from "vscode";
import { registerCommands } from "./commands";
import { EditorModel } from "./editorModel";
import { JobStore } from "./jobs";
import { KeyStore } from "./keys";
import { KernelsView } from "./kernelsView";
import { MachineView } from "./machineView";
import { MachineCodeView } from "./machineCode";
import { Logs } from "./logs";
import { registerModels } from "./models";
import { ReviewDocuments, Reviews } from "./review";
import { RunPanels } from "./runPanel";
import { Server } from "./server";
import { StatusItem } from "./status";

export function activate(context: vscode.ExtensionContext): void {
  const logs = new Logs();
  const jobs = new JobStore();
  const keys = new KeyStore(context.secrets);
  const server = new Server(context, logs, jobs, keys);
  const editorModel = new EditorModel(context.globalState, logs);
  editorModel.register(server);
  const documents = new ReviewDocuments();
  const panels = new RunPanels(server, jobs, documents);
  const reviews = new Reviews(server, panels, documents);
  const view = new KernelsView(server, jobs);
  const code = new MachineCodeView(server);
  server.onApplyEdit = (params, convert) => reviews.take(params, convert);
  panels.reviews = reviews;
  context.subscriptions.push(logs, jobs, server, documents, panels, reviews, view, code, new StatusItem(server, jobs), new MachineView(server));
  registerCommands(context, { server, jobs, logs, keys, editorModel, panels, reviews, documents, view, code });
  void server.start();
  registerModels(context, server, logs);
}

/** The server ends its jobs and its engine before VS Code goes on. */
export function deactivate(): Thenable<void> {
  return Server.stopRunning();
}
