// Edits of a text that is in no editor. Positions count UTF-16 code units, as JavaScript's strings do.
import type { TextEdit } from "vscode-languageclient/node";

/** The text with all edits made; none of them overlap. A position behind a line's or the text's end is at its end. */
export function applyTextEdits(text: string, edits: readonly TextEdit[]): string {
  const starts = lineStarts(text);
  const offset = ({ line, character }: { line: number; character: number }) => {
    if (line >= starts.length) return text.length;
    const end = line + 1 < starts.length ? starts[line + 1]! : text.length;
    return Math.min(starts[line]! + character, end);
  };
  const found = edits.map((edit, index) => ({ start: offset(edit.range.start), end: offset(edit.range.end), edit, index }));
  found.sort((a, b) => a.start - b.start || a.index - b.index);
  let [result, done] = ["", 0];
  for (const { start, end, edit } of found) {
    result += text.slice(done, start) + edit.newText;
    done = Math.max(done, end);
  }
  return result + text.slice(done);
}

function lineStarts(text: string): number[] {
  const starts = [0];
  for (const match of text.matchAll(/\r\n|\r|\n/g)) starts.push(match.index + match[0].length);
  return starts;
}
