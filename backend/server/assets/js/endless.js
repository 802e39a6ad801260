// A list that loads more rows when the user scrolls to its end.
import { h, put } from "./dom.js";
import { button, loading, problemBox } from "./ui.js";

/**
 * `ask(cursor)` resolves to a page of results with its `next_cursor`. `add(page)` draws the rows of
 * this page and returns their number. `none()` returns the content for an empty list. `end` is the
 * element below the rows.
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
      if (mine === turn && problem.name !== "AbortError") put(end, problemBox(problem, () => more(cursor)));
    }
  }
  /**
   * Clears the end of the list, or shows a button that loads more rows when it comes near the
   * visible area.
   */
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
    /** Starts from the beginning. The caller has removed the old rows. */
    begin: () => ((drawn = 0), more(null)),
    /** Continues a restored list of `count` rows. */
    resume: (count, cursor) => ((drawn = count), turn++, rest(cursor)),
  };
}
