// The text of a transcript: words that can be clicked, the one that plays, and one tab stop for all segments.

import { clock, make } from "./dom.js";

const DOUBTFUL = 0.5;

/** The list of segments in an element.

`onSeek` is called with the time of a word or segment that the user has chosen. */
export class Reading {
  constructor(list, onSeek) {
    this.list = list;
    this.units = []; // words, or segments without words, in order of time
    this.current = null;
    this.onSeek = onSeek;
    this.language = null; // of the text, if it is not that of the speech
    list.addEventListener("click", (event) => this.clicked(event));
    list.addEventListener("keydown", (event) => this.moved(event));
    list.addEventListener("focusin", (event) => this.roam(event.target));
  }

  add(segment) {
    const row = make("li", { className: "segment" }), text = make("p", { dir: "auto", lang: this.language ?? segment.language ?? "" });
    const button = make("button", { type: "button", textContent: clock(segment.start), tabIndex: this.list.children.length ? -1 : 0 });
    button.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
    for (const unit of segment.words?.length ? segment.words : [{ ...segment, word: segment.text, probability: 1 }]) {
      const said = unit.word.trimStart(), space = unit.word.slice(0, unit.word.length - said.length);
      const word = make("span", { className: unit.probability < DOUBTFUL ? "word doubtful" : "word", textContent: said });
      if (text.hasChildNodes()) text.append(space);
      text.append(word);
      word.dataset.unit = this.units.length;
      this.units.push({ start: unit.start, end: unit.end, word, row });
    }
    button.dataset.start = segment.start;
    row.append(button, text);
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 80;
    this.list.append(row);
    if (atEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  /** Highlight what is said at a time. */
  show(time) {
    let low = 0, high = this.units.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.units[middle].start <= time) low = middle + 1;
      else high = middle;
    }
    const found = this.units[low - 1], unit = found && time < found.end ? found : null;
    if (unit === this.current) return;
    this.current?.word.classList.remove("current");
    if (this.current && this.current.row !== unit?.row) this.current.row.classList.remove("current");
    if (unit) {
      unit.word.classList.add("current");
      unit.row.classList.add("current");
      if (unit.row !== this.current?.row) this.bring(unit.row);
    }
    this.current = unit;
  }

  /** Scroll a segment into sight, inside the list only. */
  bring(row) {
    const { scrollTop, clientHeight } = this.list, top = row.offsetTop;
    if (top >= scrollTop && top + row.offsetHeight <= scrollTop + clientHeight) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.list.scrollTo({ top: top - clientHeight / 3, behavior: calm ? "auto" : "smooth" });
  }

  clicked(event) {
    const button = event.target.closest("button"), word = event.target.closest(".word");
    if (button) this.onSeek(Number(button.dataset.start));
    else if (word && getSelection().isCollapsed) this.onSeek(this.units[word.dataset.unit].start);
  }

  /** Go from segment to segment by the arrow keys. */
  moved(event) {
    const row = event.target.closest(".segment");
    const next = {
      ArrowDown: row?.nextElementSibling,
      ArrowUp: row?.previousElementSibling,
      Home: this.list.firstElementChild,
      End: this.list.lastElementChild,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    next.querySelector("button").focus();
  }

  roam(button) {
    this.list.querySelector('button[tabindex="0"]')?.setAttribute("tabindex", "-1");
    button.tabIndex = 0;
  }

  get text() {
    return [...this.list.querySelectorAll("p")].map((text) => text.textContent.trim()).join("\n");
  }
}
