// A result is looked at before any file changes: its evidence in the run panel, its files as a diff, then Apply or
// Discard. What was applied is one step to undo.
import * as path from "node:path";
import * as vscode from "vscode";
import type {
  ApplyWorkspaceEditParams,
  ApplyWorkspaceEditResult,
  TextDocumentEdit,
  TextEdit,
  WorkspaceEdit,
} from "vscode-languageclient/node";
import { METHODS, type ReportResult } from "./protocol";
import type { RunPanels } from "./runPanel";
import type { Convert, Server } from "./server";
import { applyTextEdits } from "./textEdits";

const SCHEME = "kernel-lsp-result";
const APPLY = "Apply";
const APPLY_ANYWAY = "Apply Anyway";
const DISCARD = "Discard";

export interface ReviewedFile {
  uri: vscode.Uri;
  before: string;
  after: string;
}

export interface Review {
  /** The run that it is the result of; empty for other edits, which have no report. */
  run: string;
  label: string;
  /** Times are for the kernel; else applying is not what is offered first. */
  isAdvised: boolean;
  files: ReviewedFile[];
  /** Makes the change; false when it was refused. */
  apply(): Promise<boolean>;
  /** Tells the server how it ended. */
  done(isApplied: boolean): void;
}

/** The texts of results that are in no file, for the diff. */
export class ReviewDocuments implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }

  /** The URI that has this text. Both sides have the file's path: a diff of two paths is shown as a renamed file. */
  put(run: string, side: "before" | "after", file: vscode.Uri, text: string): vscode.Uri {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: path.posix.join("/", vscode.workspace.asRelativePath(file, false)), query: `${run}/${side}` });
    this.texts.set(uri.toString(), text);
    return uri;
  }

  dispose(): void {
    this.registration.dispose();
  }
}

export class Reviews implements vscode.Disposable {
  private readonly open = new Map<string, Review>();

  constructor(
    private readonly server: Server,
    private readonly panels: RunPanels,
    private readonly documents: ReviewDocuments,
  ) {}

  /** An edit of the server's. One that wants confirmation is a result; the answer waits for the user's word. */
  async take(params: ApplyWorkspaceEditParams, convert: Convert): Promise<ApplyWorkspaceEditResult> {
    const annotation = Object.values(params.edit.changeAnnotations ?? {}).find((each) => each.needsConfirmation);
    if (annotation === undefined) {
      return { applied: isCurrent(params.edit) && (await applyAndSave(await convert(params.edit))) };
    }
    const description = annotation.description ?? "";
    const run = /run ([^\s;]+)/.exec(description)?.[1] ?? "";
    const files = await filesOf(params.edit);
    return new Promise((resolve) => {
      void this.begin({
        run,
        label: annotation.label,
        isAdvised: !/; (keep PyTorch|measure first)$/.test(description),
        files,
        apply: () => applyConfirmed(params.edit, convert, files),
        done: (applied) => resolve(applied ? { applied } : { applied, failureReason: "the user discarded it" }),
      });
    });
  }

  /** The result of an earlier run, once more. */
  async again(uri: string, run: string): Promise<void> {
    const report = await this.server.ask<ReportResult>(METHODS.report, { uri, run });
    const found = report.data["files"] as { path: string; text: string; before: string }[];
    if (found.length === 0) {
      void vscode.window.showInformationMessage("kernel-lsp: this run found no kernel.");
      return;
    }
    const files = found.map((file) => ({ uri: vscode.Uri.file(file.path), before: file.before, after: file.text }));
    const advice = report.data["recommendation"] as { action: string; headline: string } | null | undefined;
    const label = ["kernel-lsp", advice?.headline, `the result of run ${report.run}`].filter(Boolean).join(": ");
    const isAdvised = (advice?.action ?? "apply") === "apply";
    const ways = { apply: () => applyFiles(files), done: () => undefined };
    await this.begin({ run: report.run, label, isAdvised, files, ...ways }, uri);
  }

  /** What the panel's buttons say. */
  async act(run: string, type: string): Promise<void> {
    const review = this.open.get(run);
    if (review === undefined) return;
    if (type === "diff") await this.showDiff(review);
    if (type === "apply") await this.apply(review);
    if (type === "discard") this.discard(review);
  }

  /** What the buttons in the title of a review's diff say. */
  async decide(isApplied: boolean): Promise<void> {
    const label = vscode.window.tabGroups.activeTabGroup.activeTab?.label ?? "";
    const review = [...this.open.values()].find((each) => label.startsWith(each.label));
    if (review === undefined) throw new Error("this is not the diff of an edit under review");
    if (isApplied) await this.apply(review);
    else this.discard(review);
  }

  dispose(): void {
    for (const review of this.open.values()) review.done(false);
  }

  // --- below

  private async begin(review: Review, near?: string): Promise<void> {
    this.open.get(review.run)?.done(false);
    this.open.set(review.run, review);
    void vscode.commands.executeCommand("setContext", "kernel-lsp.hasResult", true);
    void vscode.commands.executeCommand("setContext", "kernel-lsp.underReview", true);
    if (await this.hasPanel(review, near)) return; // its bar has the choices
    await this.showDiff(review);
    const choices = review.isAdvised ? [APPLY, DISCARD] : [DISCARD, APPLY_ANYWAY];
    const chosen = await vscode.window.showInformationMessage(review.label, ...choices);
    if (this.open.get(review.run) !== review) return;
    if (chosen === APPLY || chosen === APPLY_ANYWAY) await this.apply(review);
    if (chosen === DISCARD) this.discard(review);
  }

  /** Opens the run's report with the review's bar; false when there is none: no run, or an older server. */
  private async hasPanel(review: Review, near?: string): Promise<boolean> {
    if (review.run === "") return false;
    try {
      await this.panels.open(near ?? review.files[0]!.uri.toString(), review.run, { preserveFocus: true });
    } catch {
      return false;
    }
    this.panels.review(review.run, review);
    return true;
  }

  private async showDiff(review: Review): Promise<void> {
    const changes = review.files.map((file): [vscode.Uri, vscode.Uri | undefined, vscode.Uri] => [
      file.uri,
      file.before ? this.documents.put(review.run, "before", file.uri, file.before) : undefined, // shown as added
      this.documents.put(review.run, "after", file.uri, file.after),
    ]);
    // Beside the evidence, not over it.
    await vscode.commands.executeCommand("workbench.action.focusFirstEditorGroup");
    await vscode.commands.executeCommand("vscode.changes", review.label, changes);
  }

  private async apply(review: Review): Promise<void> {
    // VS Code shows each changed file in the active group, which is the panel's where its button was pressed.
    await vscode.commands.executeCommand("workbench.action.focusFirstEditorGroup");
    if (!(await review.apply())) {
      void vscode.window.showWarningMessage(
        "kernel-lsp: not applied, since the files have changed meanwhile. The result is kept: *Review a Run's Result* shows it again.",
      );
      return;
    }
    this.close(review);
    try {
      // Shown before they are saved: a text without an editor would be closed, and with it what undoes the change.
      for (const file of [...review.files].reverse()) {
        const options = { preview: false, viewColumn: vscode.ViewColumn.One };
        const editor = await vscode.window.showTextDocument(file.uri, options);
        await editor.document.save();
      }
    } finally {
      review.done(true); // last: the diff of the call sites follows, and these editors would cover it
    }
  }

  private discard(review: Review): void {
    this.close(review);
    review.done(false);
  }

  private close(review: Review): void {
    this.open.delete(review.run);
    void vscode.commands.executeCommand("setContext", "kernel-lsp.underReview", this.open.size > 0);
    this.panels.review(review.run, undefined);
    const diffs = vscode.window.tabGroups.all.flatMap(({ tabs }) => tabs.filter((tab) => tab.label.startsWith(review.label)));
    void vscode.window.tabGroups.close(diffs);
  }
}

// --- below: edits

/** An edit that the user chose. A file that was saved before is saved after: what follows reads it from disk. */
export async function applyAndSave(edit: vscode.WorkspaceEdit): Promise<boolean> {
  const changed = new Set(edit.entries().map(([uri]) => uri.toString()));
  const clean = vscode.workspace.textDocuments.filter((document) => changed.has(document.uri.toString()) && !document.isDirty);
  if (!(await vscode.workspace.applyEdit(edit))) return false;
  for (const document of clean) await document.save();
  return true;
}

/** Without the annotations: the user has confirmed it as a whole, and need not do so once more. */
async function applyConfirmed(edit: WorkspaceEdit, convert: Convert, files: ReviewedFile[]): Promise<boolean> {
  if (!isCurrent(edit) || !(await areAsSeen(files))) return false;
  const plain = JSON.parse(JSON.stringify({ ...edit, changeAnnotations: undefined }), (key, value: unknown) =>
    key === "annotationId" ? undefined : value,
  ) as WorkspaceEdit;
  return vscode.workspace.applyEdit(await convert(plain));
}

async function applyFiles(files: ReviewedFile[]): Promise<boolean> {
  if (!(await areAsSeen(files))) return false;
  const edit = new vscode.WorkspaceEdit();
  for (const file of files) {
    edit.createFile(file.uri, { ignoreIfExists: true });
    edit.replace(file.uri, new vscode.Range(0, 0, Number.MAX_SAFE_INTEGER, 0), file.after);
  }
  return vscode.workspace.applyEdit(edit);
}

/** Whether every document has still the version that the edit is for. */
function isCurrent(edit: WorkspaceEdit): boolean {
  return (edit.documentChanges ?? []).every((change) => {
    if (!isTextEdit(change) || change.textDocument.version === null) return true;
    const uri = vscode.Uri.parse(change.textDocument.uri).toString();
    const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri);
    return open === undefined || open.version === change.textDocument.version;
  });
}

async function areAsSeen(files: ReviewedFile[]): Promise<boolean> {
  for (const file of files) {
    if ((await currentText(file.uri)) !== file.before) return false;
  }
  return true;
}

async function filesOf(edit: WorkspaceEdit): Promise<ReviewedFile[]> {
  const found: ReviewedFile[] = [];
  for (const change of edit.documentChanges ?? []) {
    if (isTextEdit(change)) {
      const uri = vscode.Uri.parse(change.textDocument.uri);
      const before = await currentText(uri);
      found.push({ uri, before, after: applyTextEdits(before, change.edits as TextEdit[]) });
    } else if (change.kind !== "create") {
      throw new Error("a result creates and changes files, and nothing else");
    }
  }
  return found;
}

function isTextEdit(change: object): change is TextDocumentEdit {
  return "edits" in change;
}

/** Empty when there is no such file. */
async function currentText(uri: vscode.Uri): Promise<string> {
  const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri.toString());
  if (open !== undefined) return open.getText();
  try {
    return new TextDecoder().decode(await vscode.workspace.fs.readFile(uri));
  } catch {
    return "";
  }
}
