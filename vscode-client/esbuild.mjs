// Bundles the extension into dist/extension.js; with --test also each unit test, with a stand-in for `vscode`.
import { build } from "esbuild";
import { copyFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

const common = { bundle: true, platform: "node", format: "cjs", target: "node20", logLevel: "warning" };

await build({
  ...common,
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  external: ["vscode"],
  minify: true,
  sourcemap: false,
});

copyFileSync("../examples/rms_norm.py", "dist/example.py");

if (process.argv.includes("--test")) {
  await build({
    ...common,
    entryPoints: readdirSync("test").filter((name) => name.endsWith(".test.ts")).map((name) => `test/${name}`),
    outdir: "dist/test",
    alias: { vscode: fileURLToPath(new URL("test/vscode.ts", import.meta.url)) },
  });
}
