// Pictures of time: the words of a recording on a line, and the level of the microphone.

import { colour, fitted } from "./dom.js";

const LOWEST_DB = -60;
const TRACE_S = 30;
const ROUND = 3;
const GAP = 2;
const redraws = new Set();

new ResizeObserver(() => redraws.forEach((draw) => draw())).observe(document.documentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));

/** The words of a recording where they are said, as far as it has been heard, and the place that plays. */
export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.words = [];
    this.duration = this.done = this.time = 0;
    this.planned = 0;
    this.draw = () => this.paint();
    redraws.add(this.draw);
  }

  close() {
    redraws.delete(this.draw);
  }

  add(segment) {
    this.words.push(...(segment.words?.length ? segment.words : [segment]));
    this.change({});
  }

  /** Change the duration, the seconds done or the time that plays; painted once a frame. */
  change(fields) {
    Object.assign(this, fields);
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = 0;
      this.paint();
    });
  }

  paint() {
    const fit = fitted(this.canvas);
    if (!fit) return;
    const { context, width, height } = fit, middle = height / 2;
    const x = (seconds) => (this.duration ? Math.min(1, seconds / this.duration) * width : 0);
    context.fillStyle = colour("line");
    context.fillRect(0, middle - 0.5, width, 1);
    context.fillStyle = colour("pencil");
    context.fillRect(0, middle - 1, x(this.done), 2);
    const [ink, heard] = [colour("pencil"), colour("accent")];
    for (const word of this.words) {
      const left = x(word.start), right = Math.max(left + 1, x(word.end) - GAP);
      const half = Math.min(height / 2 - 4, 5 + 1.6 * (word.word ?? word.text).trim().length);
      context.fillStyle = word.start <= this.time ? heard : ink;
      context.beginPath();
      context.roundRect(left, middle - half, right - left, 2 * half, Math.min(ROUND, (right - left) / 2));
      context.fill();
    }
    context.fillStyle = heard;
    if (this.time > 0) context.fillRect(x(this.time) - 1, 0, 2, height);
  }
}

/** The level of the microphone in the last half minute. */
export class Trace {
  constructor(canvas) {
    this.canvas = canvas;
    this.levels = [];
    this.draw = () => this.paint();
    redraws.add(this.draw);
  }

  close() {
    redraws.delete(this.draw);
  }

  /** Add the root mean square of a block, and its length. */
  add(rms, seconds) {
    const decibels = 20 * Math.log10(Math.max(rms, 1e-9));
    this.levels.push(Math.max(0, 1 - decibels / LOWEST_DB));
    const kept = Math.ceil(TRACE_S / seconds);
    if (this.levels.length > kept) this.levels.splice(0, this.levels.length - kept);
    this.step = seconds;
    this.paint();
  }

  paint() {
    const fit = fitted(this.canvas);
    if (!fit) return;
    const { context, width, height } = fit, middle = height / 2;
    context.fillStyle = colour("line");
    context.fillRect(0, middle - 0.5, width, 1);
    context.fillStyle = colour("red");
    const bar = (width * this.step) / TRACE_S;
    this.levels.forEach((level, i) => {
      const half = Math.max(0.5, level * middle), left = width - (this.levels.length - i) * bar;
      context.fillRect(left, middle - half, Math.max(1, bar - 1), 2 * half);
    });
  }
}
