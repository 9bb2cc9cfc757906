// PTX and SASS of the function at the cursor, in a document beside that follows it.
import * as vscode from "vscode";
import { METHODS, type MachineCodeParams, type MachineCodeResult } from "./protocol";
import type { Server } from "./server";

const SCHEME = "kernel-lsp-code";
const FOLLOW_MS = 200;

type Form = MachineCodeParams["form"];

interface Shown {
  source: string;
  version: number;
  architecture: string;
  result: MachineCodeResult;
}

/** The lines of the code that come from a line of the source. */
export function linesOf(result: Pick<MachineCodeResult, "lines">, line: number): number[] {
  return result.lines.flatMap((source, index) => (source === line ? [index] : []));
}

/** The text of the view: the code, else what is missing. */
export function textOf({ text, problem = "" }: Pick<MachineCodeResult, "text" | "problem">): string {
  return text || `// ${problem.replaceAll("\n", "\n// ")}\n`;
}

/** Whether a result answers for a line, too; a failure does so until the text changes. */
export function covers(result: Pick<MachineCodeResult, "firstLine" | "lastLine">, line: number): boolean {
  return result.firstLine <= line && line <= result.lastLine;
}

export class MachineCodeView implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;
  private readonly marked = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("editor.wordHighlightStrongBackground"),
    overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.wordHighlightStrongForeground"),
  });
  private readonly subscriptions: vscode.Disposable[];
  private readonly shown = new Map<Form, Shown>();
  private architecture = "";
  private line = -1;
  private timer: NodeJS.Timeout | undefined;
  private nAsked = 0;

  constructor(private readonly server: Server) {
    this.subscriptions = [
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
      vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => this.follow(textEditor)),
      vscode.window.onDidChangeActiveTextEditor((editor) => editor && this.follow(editor)),
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.textChanged(document)),
      vscode.workspace.onDidCloseTextDocument((document) => document.uri.scheme === SCHEME && this.shown.delete(formOf(document.uri))),
    ];
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    const known = this.shown.get(formOf(uri));
    return known === undefined ? "" : textOf(known.result);
  }

  /** Opens the view of a form beside the kernel file. */
  async show(form: Form): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (editor === undefined || !editor.document.languageId.startsWith("cuda")) {
      void vscode.window.showInformationMessage("kernel-lsp: open a .cu file first.");
      return;
    }
    await this.update(form, editor);
    const document = await vscode.workspace.openTextDocument(uriOf(form));
    const options = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: false };
    await vscode.window.showTextDocument(document, options);
    this.mark();
  }

  /** Lets the user choose the architecture of every view. */
  async selectArchitecture(): Promise<void> {
    const known = [...this.shown.values()].flatMap(({ result }) => result.architectures);
    const items = [{ label: "Target GPU", value: "" }, ...[...new Set(known)].map((each) => ({ label: each, value: each }))];
    const chosen = await vscode.window.showQuickPick(items, { title: "Architecture of PTX and SASS" });
    if (chosen === undefined) return;
    this.architecture = chosen.value;
    const editor = vscode.window.visibleTextEditors.find((each) => [...this.shown.values()].some(({ source }) => source === each.document.uri.toString()));
    if (editor !== undefined) await this.updateAll(editor);
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const each of [...this.subscriptions, this.marked, this.changed]) each.dispose();
  }

  // --- below: following

  private follow(editor: vscode.TextEditor): void {
    if (this.shown.size === 0 || !editor.document.languageId.startsWith("cuda")) return;
    this.line = editor.selection.active.line;
    this.mark();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.updateAll(editor), FOLLOW_MS);
  }

  private textChanged(document: vscode.TextDocument): void {
    if (document.uri.scheme === SCHEME) return this.mark();
    const editor = vscode.window.activeTextEditor;
    if (editor?.document === document) this.follow(editor);
  }

  private async updateAll(editor: vscode.TextEditor): Promise<void> {
    for (const form of this.shown.keys()) {
      if (!this.isCurrent(form, editor)) await this.update(form, editor);
    }
    this.mark();
  }

  private isCurrent(form: Form, { document, selection }: vscode.TextEditor): boolean {
    const known = this.shown.get(form);
    const isSame = known?.source === document.uri.toString() && known.version === document.version && known.architecture === this.architecture;
    return isSame && known !== undefined && covers(known.result, selection.active.line);
  }

  private async update(form: Form, editor: vscode.TextEditor): Promise<void> {
    const number = ++this.nAsked;
    this.line = editor.selection.active.line;
    const { uri, version } = editor.document;
    const about: MachineCodeParams = { uri: uri.toString(), line: this.line, form, architecture: this.architecture };
    const result = await this.server.ask<MachineCodeResult>(METHODS.machineCode, about).catch((error: Error) => failed(error));
    const known = this.shown.get(form);
    if (number !== this.nAsked && known !== undefined) return; // the cursor has moved on
    if (known !== undefined && result.firstLine < 0 && known.source === uri.toString() && result.architectures.length > 0) return; // between functions
    this.shown.set(form, { source: uri.toString(), version, architecture: this.architecture, result });
    this.changed.fire(uriOf(form));
  }

  /** Highlights the code of the cursor's line in each view. */
  private mark(): void {
    for (const editor of vscode.window.visibleTextEditors) {
      if (editor.document.uri.scheme !== SCHEME) continue;
      const known = this.shown.get(formOf(editor.document.uri));
      const isShown = known !== undefined && editor.document.lineCount >= known.result.lines.length;
      const lines = isShown ? linesOf(known.result, this.line) : [];
      const ranges = lines.map((line) => editor.document.lineAt(line).range);
      editor.setDecorations(this.marked, ranges);
      if (ranges[0] !== undefined) editor.revealRange(ranges[0], vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}

// --- below

function uriOf(form: Form): vscode.Uri {
  return vscode.Uri.from({ scheme: SCHEME, path: `/function.${form}` });
}

function formOf(uri: vscode.Uri): Form {
  return uri.path.endsWith(".sass") ? "sass" : "ptx";
}

function failed(error: Error): MachineCodeResult {
  return { text: "", lines: [], function: "", architecture: "", firstLine: -1, lastLine: -1, architectures: [], problem: error.message };
}
