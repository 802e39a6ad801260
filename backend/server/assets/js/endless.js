// A list that grows as one scrolls to its end.
import { h, put } from "./dom.js";
import { button, loading, trouble } from "./ui.js";

/**
 * `ask(cursor)` resolves to a page with its `next_cursor`; `add(page)` draws its rows and answers how many they were; `none()` is what stands there
 * when there is no row at all. `end` is the place below the rows.
 */
export function endless(end, signal, { ask, add, none, more: label = "More" }) {
  let turn = 0;
  let drawn = 0;
  async function more(cursor) {
    const mine = ++turn;
    put(end, loading());
    try {
      const page = await ask(cursor);
      if (mine !== turn || signal.aborted) return;
      drawn += add(page);
      rest(page.next_cursor);
    } catch (problem) {
      if (mine === turn && problem.name !== "AbortError") put(end, trouble(problem, () => more(cursor)));
    }
  }
  /** Nothing more, or a button that presses itself when it comes near the window. */
  function rest(cursor) {
    if (!cursor) return put(end, drawn === 0 && none());
    const next = button(label, { onclick: () => more(cursor) });
    put(end, h("p.center", {}, next));
    const watcher = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      more(cursor);
    }, { rootMargin: "600px" });
    watcher.observe(next);
    signal.addEventListener("abort", () => watcher.disconnect(), { once: true });
  }
  return {
    /** Begins anew; the caller has taken the old rows out. */
    begin: () => ((drawn = 0), more(null)),
    /** Goes on where a list of `count` rows was left. */
    resume: (count, cursor) => ((drawn = count), turn++, rest(cursor)),
  };
}
