import assert from "node:assert/strict";
import { test } from "node:test";
import { applyTextEdits } from "../src/textEdits";

function edit(startLine: number, start: number, endLine: number, end: number, newText: string) {
  return { range: { start: { line: startLine, character: start }, end: { line: endLine, character: end } }, newText };
}

test("an edit of nothing is an insertion", () => {
  assert.equal(applyTextEdits("", [edit(0, 0, 0, 0, "new\n")]), "new\n");
});

test("a range up to a line that is not there is the whole text", () => {
  assert.equal(applyTextEdits("a\nb\n", [edit(0, 0, 99, 0, "c\n")]), "c\n");
});

test("edits are made where they were, in any order", () => {
  assert.equal(applyTextEdits("one two\nthree\n", [edit(1, 0, 1, 5, "3"), edit(0, 4, 0, 7, "2")]), "one 2\n3\n");
});

test("insertions at one place keep their order", () => {
  assert.equal(applyTextEdits("x", [edit(0, 0, 0, 0, "a"), edit(0, 0, 0, 0, "b")]), "abx");
});

test("lines may end in every way", () => {
  assert.equal(applyTextEdits("a\r\nb\rc\nd", [edit(2, 0, 2, 1, "C")]), "a\r\nb\rC\nd");
});

test("characters are UTF-16 code units", () => {
  assert.equal(applyTextEdits("😀b", [edit(0, 2, 0, 3, "B")]), "😀B");
});
