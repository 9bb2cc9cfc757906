import assert from "node:assert/strict";
import { test } from "node:test";
import { covers, linesOf, textOf } from "../src/machineCode";

test("a source line has each line of the code that comes from it", () => {
  assert.deepEqual(linesOf({ lines: [-1, 4, 5, 4] }, 4), [1, 3]);
  assert.deepEqual(linesOf({ lines: [-1, 4, 5, 4] }, 6), []);
});

test("what is missing is shown in place of the code, as comments", () => {
  assert.equal(textOf({ text: "", problem: "SASS needs nvdisasm\nNext: install it" }), "// SASS needs nvdisasm\n// Next: install it\n");
  assert.equal(textOf({ text: "ret;", problem: "" }), "ret;");
});

test("one answer holds for the lines of its function, and none without a function", () => {
  assert.ok(covers({ firstLine: 2, lastLine: 5 }, 5));
  assert.ok(!covers({ firstLine: 2, lastLine: 5 }, 6));
  assert.ok(!covers({ firstLine: -1, lastLine: -1 }, 0));
});
