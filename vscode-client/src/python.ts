// The selected Python environment: from the Python Environments extension, else from the Python extension, else `.venv`.
// Neither extension is needed, and neither is waited for long.
import * as fs from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";

const PATIENCE_MS = 3000;
const ENVIRONMENTS = "ms-python.vscode-python-envs";
const PYTHON = "ms-python.python";

interface EnvironmentsApi {
  getEnvironment(scope: vscode.Uri | undefined): Promise<{ execInfo?: { run?: { executable?: string } } } | undefined>;
  onDidChangeEnvironment?: vscode.Event<unknown>;
}

interface PythonApi {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(environment: unknown): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

/** The interpreter's path; undefined when nobody knows of one. */
export async function selectedInterpreter(folder: vscode.Uri | undefined): Promise<string | undefined> {
  return (
    (await withPatience(fromEnvironments(folder))) ??
    (await withPatience(fromPython(folder))) ??
    (await fromFolder(folder))
  );
}

/** Calls `changed` whenever the user selects another environment. */
export function watchInterpreter(changed: () => void): vscode.Disposable {
  const watching: vscode.Disposable[] = [];
  void api<EnvironmentsApi>(ENVIRONMENTS).then((found) => {
    if (found?.onDidChangeEnvironment) watching.push(found.onDidChangeEnvironment(changed));
  });
  void api<PythonApi>(PYTHON).then((found) => {
    if (found?.environments) watching.push(found.environments.onDidChangeActiveEnvironmentPath(changed));
  });
  return new vscode.Disposable(() => watching.forEach((each) => each.dispose()));
}

async function fromEnvironments(folder: vscode.Uri | undefined): Promise<string | undefined> {
  const found = await api<EnvironmentsApi>(ENVIRONMENTS);
  return (await found?.getEnvironment(folder))?.execInfo?.run?.executable;
}

async function fromPython(folder: vscode.Uri | undefined): Promise<string | undefined> {
  const found = await api<PythonApi>(PYTHON);
  if (!found?.environments) return undefined;
  const active = found.environments.getActiveEnvironmentPath(folder);
  const resolved = await found.environments.resolveEnvironment(active);
  return resolved?.executable.uri?.fsPath;
}

/** The interpreter beside a program, where its environment has torch: one that was made for the server alone has none. */
export async function besideWithTorch(program: string): Promise<string | undefined> {
  const bin = path.dirname(program);
  const libraries = path.join(path.dirname(bin), "lib");
  for (const version of await fs.readdir(libraries).catch(() => [])) {
    const torch = path.join(libraries, version, "site-packages", "torch");
    if ((await fs.stat(torch).catch(() => undefined)) !== undefined) return path.join(bin, "python");
  }
  return undefined;
}

async function fromFolder(folder: vscode.Uri | undefined): Promise<string | undefined> {
  if (folder === undefined) return undefined;
  for (const parts of [[".venv", "bin", "python"], ["venv", "bin", "python"]]) {
    const interpreter = path.join(folder.fsPath, ...parts);
    try {
      await fs.access(interpreter, fs.constants.X_OK);
      return interpreter;
    } catch {
      // not there: the next place
    }
  }
  return undefined;
}

async function api<T>(id: string): Promise<T | undefined> {
  const extension = vscode.extensions.getExtension<T>(id);
  return extension === undefined ? undefined : extension.isActive ? extension.exports : await extension.activate();
}

/** Undefined when it fails or takes too long: another extension's trouble must not be ours. */
async function withPatience<T>(work: Promise<T | undefined>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), PATIENCE_MS);
  });
  try {
    return await Promise.race([work.catch(() => undefined), late]);
  } finally {
    clearTimeout(timer);
  }
}
