// Where the server's program is. Nothing is run to find it.
import * as fs from "node:fs/promises";
import * as path from "node:path";

export type Origin = "setting" | "environment" | "path";

export interface Found {
  kind: "found";
  program: string;
  origin: Origin;
}

export interface NotFound {
  kind: "not-found";
  /** Every place that was looked at, in order. */
  looked: string[];
}

export interface Places {
  /** The setting; empty when it is not set. */
  setting: string;
  /** The selected Python interpreter, when the workspace is trusted: what lies in a folder must not run otherwise. */
  interpreter: string | undefined;
  /** `PATH`, as the environment has it. */
  searchPath: string;
  home: string;
  isExecutable(file: string): Promise<boolean>;
}

export const PROGRAM_ENDING = process.platform === "win32" ? ".exe" : "";
const PROGRAM = `kernel-lsp${PROGRAM_ENDING}`;

/** Whether it is a file that may be run. */
export async function isExecutable(file: string): Promise<boolean> {
  try {
    await fs.access(file, fs.constants.X_OK);
    return (await fs.stat(file)).isFile();
  } catch {
    return false;
  }
}

/** The setting alone where there is one: a wrong setting is to be told, not to be passed over. */
export async function findServer(places: Places): Promise<Found | NotFound> {
  const looked: string[] = [];
  for (const [origin, program] of candidates(places)) {
    looked.push(program);
    if (await places.isExecutable(program)) {
      return { kind: "found", program, origin };
    }
  }
  return { kind: "not-found", looked };
}

/** A program of this name on `PATH`, or where a desktop's `PATH` lacks it; undefined when it is nowhere. */
export async function findProgram(name: string, places: Pick<Places, "searchPath" | "home" | "isExecutable">): Promise<string | undefined> {
  for (const folder of programFolders(places)) {
    if (await places.isExecutable(path.join(folder, name))) return path.join(folder, name);
  }
  return undefined;
}

/** Whether the server is new enough, by the numbers of its version; what is no version is not. */
export function isNewEnough(version: string | undefined, wanted: string): boolean {
  const numbers = (text: string) => text.split(/[.+-]/).slice(0, 3).map(Number);
  const [have, want] = [numbers(version ?? ""), numbers(wanted)];
  for (let index = 0; index < want.length; index++) {
    const [ours, theirs] = [have[index] ?? NaN, want[index] ?? 0];
    if (!(ours === theirs)) {
      return ours > theirs;
    }
  }
  return true;
}

function* candidates(places: Places): Generator<[Origin, string]> {
  if (places.setting) {
    yield ["setting", expandHome(places.setting, places.home)];
    return;
  }
  if (places.interpreter) {
    yield ["environment", path.join(path.dirname(places.interpreter), PROGRAM)];
  }
  for (const folder of programFolders(places)) {
    yield ["path", path.join(folder, PROGRAM)];
  }
}

function programFolders({ searchPath, home }: Pick<Places, "searchPath" | "home">): string[] {
  // A relative folder on PATH would be one of the workspace.
  const onPath = searchPath.split(path.delimiter).filter((folder) => path.isAbsolute(folder));
  // Where `uv tool install` and `pip install --user` put programs; a desktop's PATH often lacks it.
  return [...onPath, path.join(home, ".local", "bin")];
}

function expandHome(file: string, home: string): string {
  return file.startsWith("~/") ? path.join(home, file.slice(2)) : file;
}
