// Files: several at once, a few of them at the server, each with its progress, its text as it comes, and an end.

import { events, request, RequestFailed } from "./api.js";
import { chosen } from "./choices.js";
import { clock, say } from "./dom.js";
import { Sheet, transcriptOf } from "./sheet.js";

const MAX_AT_SERVER = 2;
const BUSY = [429, 503];
const waiting = [];
let atServer = 0;
let onDone = () => {};

/** Set the function to call when a file is done. */
export function whenFileIsDone(callback) {
  onDone = callback;
}

/** Take files that were dropped or chosen. */
export function take(files) {
  const sheets = [...files].reverse().map((file) => new FileSheet(file)); // so that the first is above
  waiting.push(...sheets.reverse());
  next();
}

function next() {
  while (atServer < MAX_AT_SERVER && waiting.length) {
    atServer += 1;
    waiting.shift().run().finally(() => {
      atServer -= 1;
      next();
    });
  }
}

class FileSheet {
  constructor(file) {
    this.file = file;
    this.choices = chosen();
    this.sheet = new Sheet(file.name, file.name.replace(/\.[^.]*$/, "") || file.name, this.choices.task);
    this.sheet.load(file, file.type.startsWith("video/"));
    this.wait();
  }

  wait() {
    this.abort = new AbortController();
    this.sheet.tell("Waiting for its turn");
    this.sheet.offer({ Cancel: () => this.abort.abort() });
    this.abort.signal.addEventListener("abort", () => this.leave());
  }

  /** Leave the row of those that wait; one at the server learns of it by its signal. */
  leave() {
    const place = waiting.indexOf(this);
    if (place < 0) return;
    waiting.splice(place, 1);
    this.end("Cancelled");
  }

  async run() {
    try {
      await this.transcribe();
    } catch (error) {
      if (this.abort.signal.aborted) this.end("Cancelled");
      else this.end(error.message, { trouble: true });
    }
  }

  /** Have it transcribed, once the server has room. */
  async transcribe() {
    for (;;) {
      this.sheet.tell("On its way to the server");
      this.startMs = performance.now();
      try {
        await this.receive(await this.send());
        return;
      } catch (error) {
        if (!BUSY.includes(error.status) || !error.retryAfterS) throw error;
        this.sheet.tell(`The server is busy; next try in ${error.retryAfterS} s`);
        await pause(error.retryAfterS, this.abort.signal);
      }
    }
  }

  async send() {
    const { model, language, task, hotwords } = this.choices, form = new FormData();
    const fields = { model, stream: "true", response_format: "verbose_json", "include[]": "harken.events" };
    for (const [name, value] of Object.entries(fields)) form.append(name, value);
    for (const kind of ["word", "segment"]) form.append("timestamp_granularities[]", kind);
    if (language) form.append("language", language);
    for (const word of hotwords) form.append("keywords[]", word);
    form.append("file", this.file, this.file.name);
    const path = task === "translate" ? "v1/audio/translations" : "v1/audio/transcriptions";
    try {
      return await request(path, { method: "POST", body: form, signal: this.abort.signal });
    } catch (error) {
      if (error.status === 0) await this.check(); // to the browser it is all one
      throw error;
    }
  }

  /** Throw a line if the file cannot be read. */
  async check() {
    const reader = this.file.stream().getReader();
    try {
      await reader.read();
      await reader.cancel();
    } catch {
      throw new RequestFailed("The file cannot be read: it was changed or moved after it was chosen, or is a folder.");
    }
  }

  async receive(response) {
    let transcript = null;
    for await (const event of events(response)) {
      if (event.error) throw new RequestFailed(event.error.message);
      if (event.type === "harken.segment") this.sheet.add(event.segment);
      if (event.type === "harken.progress") this.progress(event.done_s, event.duration_s);
      if (event.type === "harken.transcript") transcript = event.transcript;
    }
    if (!transcript) throw new RequestFailed("The server ended before the text did.");
    this.done(transcript);
  }

  progress(doneS, durationS) {
    this.doneS = doneS;
    this.sheet.player.progress(doneS, durationS ?? this.sheet.player.duration);
    const of = durationS ? ` of ${clock(durationS)}` : "";
    this.sheet.tell(`${clock(doneS)}${of} · ${this.speed(doneS)}`);
  }

  /** Say how much faster than the recording it goes, the way to the server included. */
  speed(doneS) {
    const times = (1000 * doneS) / (performance.now() - this.startMs);
    return `${times < 10 ? times.toFixed(1) : Math.round(times)} times as fast as it plays`;
  }

  done(transcript) {
    this.sheet.player.progress(transcript.duration, transcript.duration);
    const words = transcript.segments.reduce((n, segment) => n + (segment.words?.length ?? 0), 0);
    const said = words ? `${words} words` : "no speech was found";
    this.sheet.tell(`${clock(transcript.duration)} · ${said} · ${this.speed(transcript.duration)} · ${transcript.model}`);
    this.sheet.offer({ Remove: () => this.sheet.remove() });
    this.sheet.finish(transcript);
    say(`${this.file.name}: ${said}.`);
    onDone();
  }

  /** End before the text does; what has come of it stays. */
  end(sentence, { trouble = false } = {}) {
    const { sheet } = this;
    const part = sheet.segments.length ? `; its text up to ${clock(sheet.segments.at(-1).end)} is below` : "";
    sheet.tell(sentence + part, { trouble });
    say(`${this.file.name}: ${sentence}`);
    sheet.finish(transcriptOf(sheet.segments, this.choices, this.doneS ?? 0));
    sheet.offer({ "Try again": () => this.again(), Remove: () => sheet.remove() });
  }

  again() {
    this.sheet.remove();
    take([this.file]);
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
