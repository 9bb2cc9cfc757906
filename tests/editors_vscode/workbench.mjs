// A real VS Code workbench (code-server) in headless Chromium, with the packaged extension, for one workspace folder.
import { spawn, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { cpus, loadavg, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = resolve(fileURLToPath(new URL("../..", import.meta.url)));
export const EDITORS = process.env.KERNEL_LSP_EDITORS ?? "/opt/kernel-lsp-editors";
export const ARTIFACTS = process.env.KERNEL_LSP_ARTIFACTS ?? join(ROOT, "build", "editor-artifacts");
export const PYTHON = join(ROOT, ".venv", "bin", "python");
const VSIX = join(ROOT, "vscode-client", "dist", "kernel-lsp.vsix");
const ENTRY = join(EDITORS, "code-server", "node_modules", "code-server", "out", "node", "entry.js");
// Upper bounds for machines with other work: waits are for states, and end when these are reached.
const PATIENCE_MS = Number(process.env.KERNEL_LSP_PATIENCE_MS ?? 300_000);
const RUN_MS = 2 * PATIENCE_MS;
export const STEP_MS = 2 * RUN_MS;
/** Until a step that may have been lost is tried again. */
const GLANCE_MS = 10_000;
const { chromium } = createRequire(join(EDITORS, "tools", "package.json"))("playwright-core");

const SETTINGS = {
  "workbench.startupEditor": "none",
  "workbench.tips.enabled": false,
  "workbench.enableExperiments": false,
  "window.commandCenter": false,
  "telemetry.telemetryLevel": "off",
  "extensions.autoUpdate": false,
  "extensions.ignoreRecommendations": true,
  "files.autoSave": "off",
  "editor.hover.delay": 100,
  "editor.stickyScroll.enabled": false,
  "git.enabled": false,
  "kernelLsp.device": "cpu",
  "kernelLsp.generations": 2,
  "kernelLsp.proposals": 4,
};

/** How much longer than alone on the machine something may take: the processes that want a processor, per processor. */
export function crowding() {
  return Math.max(1, loadavg()[0] / cpus().length);
}

export class Workbench {
  /** `prepare` is given the folder that all is in, and gives what is to be added to the environment. */
  static async open({ name, files, settings = {}, trust = true, prepare = () => ({}) }) {
    const workbench = new Workbench();
    workbench.name = name;
    workbench.nClicks = 0;
    await workbench.start(files, settings, prepare);
    if (trust) await workbench.trust();
    return workbench;
  }

  async start(files, settings, prepare) {
    this.folder = mkdtempSync(join(tmpdir(), "kernel-lsp-editors-"));
    this.workspace = join(this.folder, "project");
    mkdirSync(join(this.workspace), { recursive: true });
    writeFileSync(join(this.workspace, "pyproject.toml"), "");
    for (const [to, from] of Object.entries(files)) cpSync(from, join(this.workspace, to), { recursive: true });
    this.writeSettings(settings);
    this.log = "";
    install(this.folder);
    const port = await freePort();
    // A group of its own: the extension host and the language server end with it.
    this.server = spawn(process.execPath, [ENTRY, ...places(this.folder), "--auth", "none", "--bind-addr", `127.0.0.1:${port}`, "--disable-telemetry", "--disable-update-check", this.workspace], { detached: true, env: { ...environment(this.folder), ...prepare(this.folder) } });
    this.server.stdout.on("data", (data) => (this.log += data));
    this.server.stderr.on("data", (data) => (this.log += data));
    await this.until("code-server listens", () => this.log.includes("HTTP server listening"));
    this.address = `http://127.0.0.1:${port}/?folder=${this.workspace}`;
    this.browser = await launchChromium();
    this.context = await this.browser.newContext({ viewport: { width: 1440, height: 900 } });
    await this.openWindow();
  }

  /** A window on the folder. One that was closed is opened again with what it had. */
  async openWindow() {
    this.page = await this.context.newPage();
    this.page.setDefaultTimeout(PATIENCE_MS);
    await this.page.goto(this.address);
    await this.page.waitForSelector(".monaco-workbench");
  }

  writeSettings(settings) {
    const all = { "kernelLsp.serverPath": join(ROOT, ".venv", "bin", "kernel-lsp"), ...SETTINGS, ...settings };
    for (const scope of ["User", "Machine"]) {
      mkdirSync(join(this.folder, "user", scope), { recursive: true });
      writeFileSync(join(this.folder, "user", scope, "settings.json"), JSON.stringify(all));
    }
  }

  async trust() {
    await this.page.getByRole("button", { name: /Yes, I trust/ }).click();
  }

  /** Polls; what it gives when it gives something. */
  async until(what, holds, patience = PATIENCE_MS) {
    const end = Date.now() + patience;
    for (;;) {
      const found = await holds();
      if (found) return found;
      if (Date.now() > end) throw new Error(`not within ${patience} ms: ${what}\n${this.log.slice(-2000)}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  async shot(step) {
    await shotOf(this.page, `${this.name}-${step}`);
  }

  async run(command) {
    await this.choose("F1", `>${command}`, command);
  }

  async openFile(name) {
    // In whichever group has the focus: another one may show the same file.
    const tab = this.page.locator(`.tab.active[data-resource-name="${name.split("/").at(-1)}"]`).first();
    await this.until(`${name} open`, async () => {
      await this.choose("Control+P", name, name);
      return tab.waitFor({ timeout: GLANCE_MS }).then(() => true, () => false);
    });
  }

  /** Chooses in the quick input, which closes when something else takes the focus meanwhile: then again. */
  async choose(key, text, wanted) {
    const input = this.page.locator(".quick-input-widget input.input");
    const row = this.page.locator(".quick-input-list .monaco-list-row.focused", { hasText: wanted });
    await this.until(`${wanted} in the quick input`, async () => {
      if (!(await input.isVisible())) await this.page.keyboard.press(key);
      return input.fill(text, { timeout: GLANCE_MS }).then(() => row.waitFor({ timeout: GLANCE_MS })).then(() => true, () => false);
    });
    await this.page.keyboard.press("Enter");
  }

  /** Chooses a code action at the cursor, by keyboard. */
  async act(title) {
    const action = this.page.locator(".action-widget .monaco-list-row", { hasText: title });
    await this.until(`the action ${title}`, async () => {
      await this.page.keyboard.press("Escape");
      await this.page.keyboard.press("Control+.");
      return action.waitFor({ timeout: GLANCE_MS }).then(() => true, () => false);
    });
    while (!(await action.getAttribute("class")).includes("focused")) await this.page.keyboard.press("ArrowDown");
    await this.page.keyboard.press("Enter");
  }

  lens(text) {
    return this.page.locator(".codelens-decoration a", { hasText: text });
  }

  /** Clicks a lens until a run starts: while the lenses are drawn anew, a click is lost. */
  async startRun(text) {
    const running = this.page.locator(".statusbar-item", { hasText: /kernel-lsp: running/ });
    await this.until(`a run after a click on ${text}`, async () => {
      await this.lens(text).first().click({ timeout: GLANCE_MS }).catch(() => undefined);
      return running.waitFor({ timeout: 3 * GLANCE_MS }).then(() => true, () => false);
    });
  }

  notification(text) {
    return this.page.locator(".notification-list-item", { hasText: text }).first();
  }

  /** Clicks, and counts it. */
  async click(locator, options = {}) {
    await locator.click(options);
    this.nClicks++;
  }

  async openKernelsView() {
    await this.page.locator(".action-item a.action-label[aria-label='Kernels']").click();
    await this.page.mouse.move(700, 700); // no tooltip over the views
  }

  /** A row of the tree views. */
  row(text) {
    return this.page.locator(".pane .monaco-list-row", { hasText: text }).first();
  }

  /** The panel of a run that has ended with a kernel. */
  async result() {
    const apply = () => this.panel().getByRole("button", { name: /^Apply/ });
    await this.until("the panel with Apply", () => apply().isVisible().catch(() => false), RUN_MS);
    return { panel: this.panel(), apply: apply() };
  }

  /** The text of the hover over a class of the open file, once it matches. */
  async hover(symbol, wanted) {
    const name = this.page.locator(".view-line", { hasText: `class ${symbol}` }).locator("span", { hasText: new RegExp(`^${symbol}$`) }).last();
    await this.run("View: Focus Active Editor Group");
    await this.page.keyboard.press("Control+Home"); // left of everything
    const text = async () => (await this.page.locator(".monaco-hover:visible").allInnerTexts()).join(" ");
    return this.until(`a hover that matches ${wanted}`, async () => {
      await this.page.mouse.move(700, 700);
      await this.until("no hover", async () => (await text()) === "");
      await name.hover();
      return this.until("a hover", async () => (wanted.test(await text()) ? text() : undefined), GLANCE_MS).catch(() => undefined);
    });
  }

  /** Waits until files of the workspace have a text: applying makes a file, then saves what is in it. */
  async written(...names) {
    await this.until(`${names} written`, () => names.every((name) => existsSync(join(this.workspace, name)) && this.text(name).length > 0));
  }

  text(name) {
    return readFileSync(join(this.workspace, name), "utf8");
  }

  /** Runs a program in the workspace, under the interpreter that the server has. */
  python(...args) {
    return spawnSync(PYTHON, args, { cwd: this.workspace, encoding: "utf8", env: environment(this.folder) });
  }

  /** The document inside of a run panel's two frames. */
  panel() {
    return this.page.frameLocator("iframe.webview.ready").last().frameLocator("#active-frame");
  }

  /** The ids of processes that run in this workspace and whose command line has the text. */
  processes(text) {
    return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number).filter((pid) => {
      try {
        const isOurs = readlinkSync(`/proc/${pid}/cwd`).startsWith(this.workspace);
        return isOurs && readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").includes(text);
      } catch {
        return false; // it has just ended
      }
    });
  }

  async close() {
    await this.browser?.close().catch(() => undefined);
    if (this.server?.pid) {
      try {
        process.kill(-this.server.pid, "SIGTERM");
        await new Promise((resolve) => setTimeout(resolve, 1500));
        process.kill(-this.server.pid, "SIGKILL");
      } catch {
        // it has ended by itself
      }
    }
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

export function launchChromium() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
}

/** A screenshot, kept as an artifact. */
export async function shotOf(page, name) {
  mkdirSync(ARTIFACTS, { recursive: true });
  await page.screenshot({ path: join(ARTIFACTS, `${name}.png`), animations: "disabled" });
}

function install(folder) {
  if (!existsSync(VSIX)) throw new Error(`${VSIX} is not there: run npm run package in vscode-client`);
  const result = spawnSync(process.execPath, [ENTRY, ...places(folder), "--install-extension", VSIX], { encoding: "utf8", env: environment(folder) });
  if (result.status !== 0) throw new Error(`the VSIX cannot be installed: ${result.stdout}${result.stderr}`);
}

function places(folder) {
  return ["--user-data-dir", join(folder, "user"), "--extensions-dir", join(folder, "extensions")];
}

/** Without our own configuration, and without what an editor that started this set. */
function environment(folder) {
  const kept = Object.entries(process.env).filter(([name]) => !/^(VSCODE_|KERNEL_LSP_|npm_)/.test(name));
  return { ...Object.fromEntries(kept), XDG_CONFIG_HOME: join(folder, "config"), OMP_NUM_THREADS: "1" };
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
