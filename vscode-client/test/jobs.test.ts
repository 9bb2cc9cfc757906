import assert from "node:assert/strict";
import { test } from "node:test";
import { JobStore } from "../src/jobs";
import type { JobParams } from "../src/protocol";

function job(id: string, state: JobParams["state"]): JobParams {
  return { job: id, kind: "optimize", state, title: id };
}

test("a job is active from its queueing to its end", () => {
  const store = new JobStore();
  store.hear(job("a", "queued"));
  store.hear(job("a", "running"));
  assert.deepEqual(store.active.map((each) => each.state), ["running"]);
  store.hear(job("a", "cancelled"));
  assert.deepEqual(store.active, []);
});

test("all jobs are gone with the server", () => {
  const store = new JobStore();
  const heard: (JobParams | undefined)[] = [];
  store.hear(job("a", "running"));
  store.onChange((each) => heard.push(each));
  store.clear();
  assert.deepEqual(store.active, []);
  assert.deepEqual(heard, [undefined]);
});
