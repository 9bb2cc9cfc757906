// The extension's own view of its settings. The server reads the others by itself.
import * as vscode from "vscode";

export const SECTION = "kernelLsp";

export function serverPath(): string {
  return vscode.workspace.getConfiguration(SECTION).get<string>("serverPath", "").trim();
}

/** What the user has set, for `scope` or for all; without defaults. */
export function givenSettings(scope?: vscode.Uri): Record<string, unknown> {
  const configuration = vscode.workspace.getConfiguration(SECTION, scope);
  const given: Record<string, unknown> = {};
  for (const name of Object.keys(configuration)) {
    const found = configuration.inspect(name);
    const isGiven = [found?.globalValue, found?.workspaceValue, found?.workspaceFolderValue].some((each) => each !== undefined);
    if (isGiven) given[name] = configuration.get(name);
  }
  return given;
}

export function value<T>(name: string, fallback: T, scope?: vscode.Uri): T {
  return vscode.workspace.getConfiguration(SECTION, scope).get<T>(name) ?? fallback;
}

/** Into the workspace where there is one, else for the user; never beside a narrower value that would hide it. */
export async function update(name: string, newValue: unknown): Promise<void> {
  const configuration = vscode.workspace.getConfiguration(SECTION);
  const inWorkspace = configuration.inspect(name)?.workspaceValue !== undefined;
  const target = inWorkspace ? vscode.ConfigurationTarget.Workspace : vscode.ConfigurationTarget.Global;
  await configuration.update(name, newValue, target);
}
