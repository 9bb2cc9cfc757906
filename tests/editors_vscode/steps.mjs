// Steps that build on each other: after one that failed the others would fail for its reason, and are skipped.
import { test } from "node:test";
import { STEP_MS } from "./workbench.mjs";

/** `step(name, body)` for a file. `workbench` gives the workbench; steps that match `aside` are built on by none. */
export function stepsOf(workbench, aside = /^$/) {
  let hasFailed = false;
  return (name, body) => test(name, { timeout: STEP_MS }, async (context) => {
    if (hasFailed) return context.skip("an earlier step failed");
    try {
      await body();
    } catch (error) {
      hasFailed = !aside.test(name);
      await workbench().shot(`failed-${name.slice(0, 20).replaceAll(" ", "-")}`);
      throw error;
    }
  });
}
