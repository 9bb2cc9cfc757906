// The devices to choose from: this machine's, the GPUs of hosts that OpenSSH knows, and Ray clusters.
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";

export interface DeviceItem {
  label: string;
  description: string;
}

export const ANOTHER = "Another…";
const PATTERN = /^(auto|cpu|cuda(:(\d{1,3}|all))?|ssh:\/\/\S+|ray(:\/\/\S+)?(\?\S*)?)$/; // as in package.json
const LOCAL: DeviceItem[] = [
  { label: "auto", description: "a GPU where there is one, else the CPU" },
  { label: "cpu", description: "the PTX executor" },
  { label: "cuda", description: "the first GPU" },
  { label: "cuda:all", description: "all GPUs of this machine" },
];

/** The devices to offer: local ones, the hosts of OpenSSH's configuration, Ray, and `current` where it is none of them. */
export function deviceItems(current: string, sshConfig: string): DeviceItem[] {
  const hosts = sshHosts(sshConfig).map((host) => ({ label: `ssh://${host}`, description: "the GPU of that machine" }));
  const items = [...LOCAL, ...hosts, { label: "ray", description: "the GPUs of a Ray cluster" }];
  if (!items.some((item) => item.label === current)) items.unshift({ label: current, description: "the present setting" });
  return [...items, { label: ANOTHER, description: "ssh://USER@HOST:PORT, ray://HOST:10001, cuda:1" }];
}

/** The names after `Host`, without patterns. */
export function sshHosts(config: string): string[] {
  const lines = config.split("\n").map((line) => /^\s*host(?:\s*=\s*|\s+)(.+?)\s*$/i.exec(line)?.[1] ?? "");
  const names = lines.flatMap((names) => names.split(/\s+/)).filter((name) => name !== "" && !/[*?!"#]/.test(name));
  return [...new Set(names)];
}

/** What is wrong with the name of a device; undefined for one that the server takes. */
export function deviceProblem(name: string): string | undefined {
  return PATTERN.test(name.trim()) ? undefined : "auto, cpu, cuda, cuda:N, cuda:all, ssh://[USER@]HOST[:PORT], ray or ray://HOST:PORT";
}

/** The user's configuration of OpenSSH; empty without one. */
export function readSshConfig(home = os.homedir()): string {
  try {
    return fs.readFileSync(path.join(home, ".ssh", "config"), "utf8");
  } catch {
    return "";
  }
}
