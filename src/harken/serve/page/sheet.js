// A sheet: one recording, its text as it comes, and what can be done with it.

import { render } from "./api.js";
import { $, make, say } from "./dom.js";
import { Player } from "./player.js";
import { Reading } from "./reading.js";

const SEEN_PX = 150; // of a new sheet; on a phone it may lie below the screen
const FORMATS = ["srt", "vtt", "txt", "json", "html"];

export class Sheet {
  /** Show a sheet above the others; `base` is the name of its downloads without their ending. */
  constructor(name, base, task) {
    Object.assign(this, { name, base, segments: [], transcript: null, recording: null });
    this.title = make("h3", { textContent: name });
    this.status = make("p", { className: "status" });
    this.acts = make("div", { className: "acts" });
    this.player = new Player(name, (time) => this.reading.show(time));
    this.note = make("p", { className: "note", hidden: true });
    this.list = make("ol", { className: "text" });
    this.list.setAttribute("aria-label", `Text of ${name}`);
    this.list.setAttribute("role", "list"); // lists without bullets are none to some screen readers
    this.reading = new Reading(this.list, (time) => this.player.seek(time, { play: true }));
    if (task === "translate") this.reading.language = "en";
    this.foot = make("div", { className: "foot", hidden: true });
    this.element = make("article", { className: "sheet" });
    this.element.setAttribute("aria-label", name);
    this.element.append(make("div", { className: "head" }, this.title, this.status, this.acts), this.player.element, this.note, this.list, this.foot);
    $("empty").hidden = true;
    $("sheets").prepend(this.element);
    if (this.element.getBoundingClientRect().top > innerHeight - SEEN_PX) this.element.scrollIntoView({ block: "start" });
  }

  /** Say how it stands. */
  tell(sentence, { trouble = false } = {}) {
    if (this.status.textContent !== sentence) this.status.textContent = sentence;
    this.status.classList.toggle("trouble", trouble);
  }

  /** Offer what can be done now: functions, by what their buttons say. */
  offer(acts) {
    const hadFocus = this.acts.contains(document.activeElement);
    this.acts.replaceChildren(...Object.entries(acts).map(([text, act]) => this.button(text, act)));
    if (hadFocus) this.acts.firstElementChild?.focus();
  }

  button(text, act) {
    const button = make("button", { type: "button", textContent: text });
    button.setAttribute("aria-label", `${text}: ${this.name}`);
    button.addEventListener("click", act);
    return button;
  }

  add(segment) {
    this.segments.push(segment);
    this.reading.add(segment);
    this.player.strip.add(segment);
  }

  /** Play this recording. */
  load(blob, isVideo) {
    this.player.load(blob, isVideo, () => {
      this.note.textContent = "This browser cannot play a recording of this kind. Its text does not need that.";
      this.note.hidden = false;
      this.player.element.hidden = true;
    });
  }

  /** Take the transcript as it will stay, and offer it as files. */
  finish(transcript) {
    this.transcript = transcript;
    if (!transcript.segments.length) return;
    const downloads = FORMATS.map((format) => this.download(format, async () => render(transcript, format)));
    if (this.recording) downloads.push(this.download("wav", async () => this.recording));
    const copy = this.button("Copy text", () => this.copy());
    copy.classList.add("copy");
    this.foot.replaceChildren(make("span", { textContent: "Download" }), ...downloads, copy);
    this.foot.hidden = false;
  }

  download(format, makeFile) {
    const button = this.button(format, async () => {
      try {
        save(await makeFile(), `${this.base}.${format}`);
      } catch (error) {
        this.tell(error.message, { trouble: true });
      }
    });
    button.setAttribute("aria-label", `Download ${this.base}.${format}`);
    return button;
  }

  async copy() {
    await copyText(this.reading.text);
    say(`The text of ${this.name} is copied.`);
    const button = this.foot.querySelector(".copy");
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy text"), 2000);
  }

  /** Take the sheet away. */
  remove() {
    this.player.close();
    const next = this.element.nextElementSibling?.querySelector?.("button") ?? $("sheets");
    this.element.remove();
    $("empty").hidden = $("sheets").querySelector(".sheet") !== null;
    next.focus();
  }
}

/** Return a transcript of the segments that have come. */
export function transcriptOf(segments, { model, task, language }, durationS) {
  const spoken = segments.find((segment) => segment.language)?.language;
  const text = segments.map((segment) => segment.text).join("").trim();
  const duration = Math.max(durationS, segments.at(-1)?.end ?? 0);
  return { segments, language: spoken ?? (language || "en"), duration, model, task, text };
}

function save(blob, name) {
  const url = URL.createObjectURL(blob), link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Copy text, also where the browser gives no clipboard to pages without https. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
