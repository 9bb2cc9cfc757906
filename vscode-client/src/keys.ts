// API keys, in the editor's secret storage. They reach the server as environment variables, and no setting, log or file.
import * as vscode from "vscode";

const NAMES = "kernel-lsp.keyNames";
export const KEY_VARIABLES = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "DEEPSEEK_API_KEY"];

export class KeyStore {
  constructor(private readonly secrets: vscode.SecretStorage) {}

  /** An empty value removes the key. */
  async set(variable: string, key: string): Promise<void> {
    const names = new Set(await this.names());
    if (key) {
      names.add(variable);
      await this.secrets.store(`key.${variable}`, key);
    } else {
      names.delete(variable);
      await this.secrets.delete(`key.${variable}`);
    }
    await this.secrets.store(NAMES, JSON.stringify([...names]));
  }

  async names(): Promise<string[]> {
    return JSON.parse((await this.secrets.get(NAMES)) ?? "[]") as string[];
  }

  async environment(): Promise<Record<string, string>> {
    const found: Record<string, string> = {};
    for (const name of await this.names()) {
      const key = await this.secrets.get(`key.${name}`);
      if (key) found[name] = key;
    }
    return found;
  }
}

/** Asks for a provider and its key. Undefined when the user thinks better of it. */
export async function askForKey(): Promise<{ variable: string; key: string } | undefined> {
  const other = "Another…";
  const chosen = await vscode.window.showQuickPick([...KEY_VARIABLES, other], { title: "The key's environment variable" });
  if (chosen === undefined) return undefined;
  const validateInput = (text: string) => (/^[A-Z][A-Z0-9_]*$/.test(text) ? undefined : "Capital letters, digits and _");
  const variable = chosen === other ? await vscode.window.showInputBox({ title: "Environment variable", validateInput }) : chosen;
  if (variable === undefined) return undefined;
  const key = await vscode.window.showInputBox({
    title: `${variable}: kept in the editor's secret storage`,
    prompt: "Empty removes it.",
    password: true,
    ignoreFocusOut: true,
  });
  return key === undefined ? undefined : { variable, key: key.trim() };
}
