// Where the server's program is. Nothing is run to find it.
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

const PROGRAM = process.platform === "win32" ? "kernel-lsp.exe" : "kernel-lsp";

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
  for (const folder of places.searchPath.split(path.delimiter)) {
    // A relative folder on PATH would be one of the workspace.
    if (path.isAbsolute(folder)) {
      yield ["path", path.join(folder, PROGRAM)];
    }
  }
  // Where `uv tool install` and `pip install --user` put programs; a desktop's PATH often lacks it.
  yield ["path", path.join(places.home, ".local", "bin", PROGRAM)];
}

function expandHome(file: string, home: string): string {
  return file.startsWith("~/") ? path.join(home, file.slice(2)) : file;
}
