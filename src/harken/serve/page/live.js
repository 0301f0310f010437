// Live speech: the microphone, its level, words in pencil and in ink, and at the end the recording with its text.

import { chosen, offerDevices } from "./choices.js";
import { Connection } from "./connection.js";
import { $, clock, make, say } from "./dom.js";
import { Microphone, problem, refusal } from "./microphone.js";
import { pauseAll } from "./player.js";
import { Sheet, transcriptOf } from "./sheet.js";
import { Trace } from "./strip.js";

const SILENT_RMS = 0.0003;
const SILENT_S = 4;
const KEPT_LATENCIES = 30;

let current = null;
let onDone = () => {};

/** Let the buttons work, or say why they cannot; `whenDone` is called at the end of a recording. */
export function prepare(whenDone) {
  onDone = whenDone;
  const reason = problem();
  complain(reason);
  if (reason) {
    $("record").disabled = $("device").disabled = true;
    return;
  }
  $("record").addEventListener("click", () => (current ? current.stop() : start()));
  navigator.mediaDevices.addEventListener("devicechange", nameDevices);
  nameDevices();
  addEventListener("beforeunload", (event) => {
    if (current) event.preventDefault();
  });
}

async function nameDevices() {
  offerDevices(await navigator.mediaDevices.enumerateDevices());
}

function complain(sentence) {
  $("mic-problem").textContent = sentence;
  $("mic-problem").hidden = !sentence;
}

async function start() {
  complain("");
  pauseAll(); // the microphone would hear it
  $("record").disabled = true;
  try {
    current = new LiveSheet();
    await current.open();
  } catch (error) {
    current.sheet.remove();
    current = null;
    complain(refusal(error));
    $("record").focus();
  }
  $("record").disabled = false;
  turned();
}

function turned() {
  $("record").setAttribute("aria-pressed", String(current !== null));
  $("record-text").textContent = current ? "Stop" : "Start";
}

class LiveSheet {
  constructor() {
    const now = new Date(), two = (n) => String(n).padStart(2, "0");
    const time = `${two(now.getHours())}.${two(now.getMinutes())}.${two(now.getSeconds())}`;
    this.choices = chosen();
    this.sheet = new Sheet(`Speech at ${now.toLocaleTimeString()}`, `speech ${time}`, this.choices.task);
    this.sheet.element.classList.add("live");
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Level of the microphone");
    this.trace = new Trace(canvas);
    this.meter = make("div", { className: "player" }, make("div", { className: "strip trace" }, canvas));
    this.sheet.player.element.replaceWith(this.meter);
    this.committed = make("span", { className: "committed" });
    this.tentative = make("span", { className: "tentative" });
    this.now = make("div", { className: "now" }, make("span", { textContent: "now" }), make("p", { dir: "auto" }, this.committed, this.tentative));
    this.log = make("div", { className: "unseen" }); // what screen readers say: settled words, each once
    this.log.setAttribute("role", "log");
    this.sheet.list.after(this.now, this.log);
    Object.assign(this, { latencies: { shown: [], settled: [] }, startMs: Infinity, silentS: 0 });
    this.sheet.tell("Asking for the microphone");
  }

  async open() {
    const { model, language, task, delay, device, hotwords, captions } = this.choices;
    this.microphone = await Microphone.open(device, (block, rms) => this.take(block, rms), () => this.stop());
    nameDevices(); // the browser tells their names from now on
    const audio = { format: "s16le", rate: this.microphone.rate, channels: 1 };
    const hello = { model, task, hotwords, delay, words: true, audio, ...(language ? { language } : {}) };
    this.connection = new Connection(hello, {
      message: (event) => this.show(event),
      lost: () => this.sheet.tell("The connection was lost; trying to go on", { trouble: true }),
      back: () => this.tell(),
    }, captions);
    this.connection.closed.then(() => this.finish(), (error) => this.finish(error));
    navigator.wakeLock?.request("screen").then((lock) => (this.wakeLock = lock), () => {});
    this.sheet.offer({ Stop: () => this.stop() });
    say("Recording.");
    this.tell();
  }

  take(block, rms) {
    const seconds = block.length / this.microphone.rate;
    // Blocks come late, never early, so the earliest one tells best when the recording began.
    this.startMs = Math.min(this.startMs, performance.now() - 1000 * this.microphone.seconds);
    this.silentS = rms < SILENT_RMS ? this.silentS + seconds : 0;
    this.trace.add(rms, seconds);
    this.connection.send(block);
    if (this.connection.open) this.tell();
  }

  show(event) {
    const nowS = (performance.now() - this.startMs) / 1000;
    if (event.event === "interim") {
      this.say(event.words);
      this.write(event.committed, event.tentative);
      this.note("settled", event.words.map((word) => nowS - word.end));
      if (event.tentative) this.note("shown", [nowS - event.audio_s]);
    } else if (event.event === "final_segment") {
      this.write("", "");
      this.sheet.add(event.segment);
    } else if (event.event === "speech_started") {
      this.write("", "");
    } else if (event.event === "load_changed") {
      this.load = event.level ? `the server is busy: ${event.detail}` : "";
    }
  }

  write(committed, tentative) {
    this.committed.textContent = committed.trimStart();
    this.tentative.textContent = committed ? tentative : tentative.trimStart();
    const { top, bottom } = this.now.getBoundingClientRect();
    if (top < innerHeight && bottom > innerHeight) this.now.scrollIntoView({ block: "nearest" }); // unless it is out of sight
  }

  say(words) {
    if (!words.length) return;
    this.log.append(make("p", { textContent: words.map((word) => word.word).join("").trim() }));
    while (this.log.children.length > KEPT_LATENCIES) this.log.firstElementChild.remove();
  }

  note(kind, seconds) {
    const kept = this.latencies[kind];
    kept.push(...seconds.filter((s) => s >= 0));
    kept.splice(0, Math.max(0, kept.length - KEPT_LATENCIES));
  }

  tell() {
    if (this.stopping) {
      this.sheet.tell("Waiting for the last words");
      return;
    }
    const facts = [`Recording ${clock(this.microphone.seconds)}`];
    for (const [kind, seconds] of Object.entries(this.latencies)) {
      if (seconds.length) facts.push(`words ${kind} after ${median(seconds).toFixed(1)} s`);
    }
    if (this.silentS > SILENT_S) facts.push("nothing comes from the microphone");
    if (this.load) facts.push(this.load);
    this.sheet.tell(facts.join(" · "));
  }

  /** Stop recording; the last words follow. */
  async stop() {
    if (this.stopping) return;
    this.stopping = true;
    $("record").disabled = true;
    await this.microphone.close();
    this.sheet.offer({});
    this.tell();
    this.connection.end();
  }

  async finish(error) {
    if (!this.stopping) {
      this.stopping = true;
      await this.microphone.close();
    }
    this.wakeLock?.release();
    this.trace.close();
    for (const element of [this.now, this.log]) element.remove();
    this.meter.replaceWith(this.sheet.player.element);
    this.close(error);
    current = null;
    $("record").disabled = false;
    turned();
    $("record").focus();
    onDone();
  }

  /** Leave the recording and its text. */
  close(error) {
    const { sheet, microphone } = this, seconds = microphone.seconds;
    sheet.element.classList.remove("live");
    sheet.recording = microphone.recording();
    sheet.player.progress(seconds, seconds);
    sheet.load(sheet.recording, false);
    const words = sheet.segments.reduce((n, segment) => n + (segment.words?.length ?? 0), 0);
    const settled = this.latencies.settled.length ? ` · words settled after ${median(this.latencies.settled).toFixed(1)} s` : "";
    const facts = `${clock(seconds)} · ${words ? `${words} words` : "no speech was found"}${settled}`;
    sheet.tell(error ? `${error.message} · ${facts}` : facts, { trouble: Boolean(error) });
    say(error ? error.message : `The recording has ended. ${facts}`);
    sheet.offer({ Remove: () => sheet.remove() });
    sheet.finish(transcriptOf(sheet.segments, this.choices, seconds));
  }
}

function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}
