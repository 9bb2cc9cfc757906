// Whether the text of a report, and of its chart, can be read in its colours.
import assert from "node:assert/strict";

const LEAST_CONTRAST = 4.5; // WCAG 2.2, AA

/** `body` is that of the report's page. */
export async function assertLegible(body) {
  const [back, ...texts] = await body.evaluate((element) => {
    const { color, backgroundColor } = getComputedStyle(element);
    return [backgroundColor, color, ...[...element.querySelectorAll("svg text")].map((text) => getComputedStyle(text).fill)];
  });
  assert.ok(texts.length > 1, "no text in the chart");
  for (const text of new Set(texts)) assert.ok(contrast(text, back) >= LEAST_CONTRAST, `${text} on ${back}`);
}

/** WCAG 2.2's contrast ratio of two `rgb()` colours. */
function contrast(one, other) {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
      const value = Number(part) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}
