// Plays a recording that lies in this browser, and moves through it on the strip of its words.

import { clock, icon, make } from "./dom.js";
import { Strip } from "./strip.js";

const KEY_STEP_S = 5;

/** A player; `onTime` is called with the time that plays. */
export class Player {
  constructor(name, onTime) {
    this.onTime = onTime;
    this.media = null;
    this.button = make("button", { type: "button", className: "play", disabled: true });
    this.button.append(icon({ triangle: "M4.5 2.5v11l9-5.5z", pause: "M4 2.5h3v11H4zM9 2.5h3v11H9z" }));
    this.button.setAttribute("aria-label", `Play ${name}`);
    this.button.addEventListener("click", () => (this.media.paused ? this.play() : this.media.pause()));
    const canvas = make("canvas");
    this.slider = make("input", { type: "range", min: 0, max: 1, step: "any", value: 0, disabled: true });
    this.slider.setAttribute("aria-label", `Place in ${name}`);
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.step(event));
    this.clock = make("span", { className: "clock" });
    this.strip = new Strip(canvas);
    this.element = make("div", { className: "player" }, this.button, make("div", { className: "strip" }, canvas, this.slider), this.clock);
    this.url = null;
  }

  get duration() {
    return this.strip.duration;
  }

  /** Note how long the recording is, and how much of it has been heard. */
  progress(doneS, durationS) {
    this.strip.change({ done: doneS, duration: Math.max(durationS, doneS) });
    this.slider.max = this.duration;
    this.tell(this.media?.currentTime ?? 0);
  }

  /** Play this recording from now on; `onFailure` is called if the browser cannot. */
  load(blob, isVideo, onFailure) {
    this.url = URL.createObjectURL(blob);
    this.media = make(isVideo ? "video" : "audio", { preload: "metadata", playsInline: true, src: this.url });
    this.media.addEventListener("loadedmetadata", () => {
      if (Number.isFinite(this.media.duration) && !this.duration) this.progress(0, this.media.duration);
      this.button.disabled = this.slider.disabled = false;
    });
    this.media.addEventListener("error", () => {
      this.button.disabled = this.slider.disabled = true;
      onFailure();
    });
    for (const type of ["play", "pause"]) this.media.addEventListener(type, () => this.turned());
    for (const type of ["timeupdate", "seeked"]) this.media.addEventListener(type, () => this.tell(this.media.currentTime));
    if (isVideo) this.element.before(this.media);
  }

  play() {
    for (const other of Player.playing) if (other !== this) other.media.pause();
    this.media.play().catch(() => {}); // its error event tells why
  }

  seek(time, { play = false } = {}) {
    if (!this.media || this.button.disabled) return;
    this.media.currentTime = time;
    this.tell(time + 0.001); // a browser may stop just before the time that was asked for
    if (play) this.play();
  }

  step(event) {
    const seconds = { ArrowLeft: -KEY_STEP_S, ArrowDown: -KEY_STEP_S, ArrowRight: KEY_STEP_S, ArrowUp: KEY_STEP_S }[event.key];
    if (!seconds || !this.media) return;
    event.preventDefault();
    this.seek(Math.max(0, Math.min(this.duration, this.media.currentTime + seconds)));
  }

  turned() {
    const plays = !this.media.paused;
    this.button.classList.toggle("playing", plays);
    this.button.setAttribute("aria-label", this.button.getAttribute("aria-label").replace(/^\w+/, plays ? "Pause" : "Play"));
    if (plays) {
      Player.playing.add(this);
      this.follow();
    } else {
      Player.playing.delete(this);
    }
  }

  /** Follow the words more closely than the events of the browser do. */
  follow() {
    this.tell(this.media.currentTime);
    if (!this.media.paused) requestAnimationFrame(() => this.follow());
  }

  tell(time) {
    this.slider.value = time;
    this.slider.setAttribute("aria-valuetext", `${clock(time)} of ${clock(this.duration)}`);
    const shown = this.duration ? `${clock(time)} / ${clock(this.duration)}` : "";
    if (this.clock.textContent !== shown) this.clock.textContent = shown;
    this.strip.change({ time });
    this.onTime(time);
  }

  close() {
    this.media?.pause();
    Player.playing.delete(this);
    this.strip.close();
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
Player.playing = new Set();
