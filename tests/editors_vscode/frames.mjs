// What a person would notice while something goes on beside: frames of a page that come late, keys that show late.

/** Notes, in the page's own frame, each gap between frames and how long each key took until the frame after it. */
export async function watchFrames(page) {
  await page.evaluate(() => {
    const seen = { gaps: [], keys: [], isOver: false };
    window.kernelLspFrames = seen;
    let last = performance.now();
    const frame = (now) => {
      seen.gaps.push(now - last);
      last = now;
      if (!seen.isOver) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    // In the frame that has it the key is painted when the timer fires that the frame starts.
    seen.hear = ({ timeStamp }) => requestAnimationFrame(() => setTimeout(() => seen.keys.push(performance.now() - timeStamp)));
    window.addEventListener("keydown", seen.hear, { capture: true });
  });
}

/** Ends it: both in milliseconds, the shortest first. */
export async function framesSeen(page) {
  return page.evaluate(() => {
    const seen = window.kernelLspFrames;
    seen.isOver = true;
    window.removeEventListener("keydown", seen.hear, { capture: true });
    const sorted = (values) => values.sort((a, b) => a - b);
    return { gaps: sorted(seen.gaps), keys: sorted(seen.keys) };
  });
}

/** Sends events of a run to the page of a report, of candidates that are proposed and evaluated. Returns at the end. */
export async function sendEvents(main, { perSecond, seconds }) {
  await main.evaluate(async (element, [rate, n]) => {
    for (let index = 0; index < n; index++) {
      const candidate_id = `live${index >> 1}`;
      const event = index % 2 === 0
        ? { kind: "candidate_proposed", candidate_id, generation: 2, description: "live" }
        : { kind: "candidate_evaluated", candidate_id, generation: 2, depth: "screen", outcome: "correct", message: "right", score_us: 5, score_kind: "estimated" };
      window.postMessage({ type: "event", event });
      await new Promise((resolve) => setTimeout(resolve, 1000 / rate));
    }
  }, [perSecond, perSecond * seconds]);
}
