"use strict";
// Shows the JSON above; every text is inserted as text, never as markup.
const transcript = JSON.parse(document.getElementById("transcript").textContent);
const $ = (id) => document.getElementById(id);
const audio = $("audio"), main = $("text"), map = $("map");
const units = [];     // what playback highlights: words, or segments without words, in order of time
let current = null, now = 0;

function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function clock(seconds) {
  const s = Math.floor(seconds), pad = (n) => String(n).padStart(2, "0");
  return (s >= 3600 ? `${Math.floor(s / 3600)}:${pad(Math.floor(s / 60) % 60)}` : Math.floor(s / 60)) + `:${pad(s % 60)}`;
}

const percent = (p) => `${Math.round(100 * p)} %`;
const probability = (segment) => Math.exp(segment.avg_logprob ?? -Infinity);

// ---- the text

function addWord(paragraph, text, start, end, p, element) {
  const span = make("span", p < 0.5 ? "word doubtful" : "word", text.trim());
  span.style.setProperty("--doubt", (1 - p).toFixed(3));
  span.title = `${clock(start)}, probability ${percent(p)}`;
  units.push({ span, start, end, segment: element, text: text.toLocaleLowerCase() });
  paragraph.append(paragraph.hasChildNodes() ? text.slice(0, text.length - text.trimStart().length) : "", span);
}

function notes(segment, reason) {
  const said = [];
  if (reason !== undefined) said.push(`left out: ${reason}`);
  if (segment.language && segment.language !== transcript.language) said.push(`language: ${segment.language}`);
  for (const attempt of segment.attempts) {
    if (attempt.reason) said.push(`tried at temperature ${attempt.temperature}: ${attempt.reason}`);
  }
  if (segment.temperature > 0) said.push(`decoded at temperature ${segment.temperature}`);
  const list = make("div", "notes");
  list.append(...said.map((text) => make("span", "", text)));
  return list;
}

function row(segment, reason) {
  const element = make("div", reason === undefined ? "segment" : "segment left-out");
  const button = make("button", "", clock(segment.start)), paragraph = make("p", "");
  button.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
  button.addEventListener("click", () => seek(segment.start, true));
  paragraph.lang = segment.language || transcript.language;
  paragraph.dir = "auto";
  if (segment.words.length) {
    for (const w of segment.words) addWord(paragraph, w.word, w.start, w.end, w.probability, element);
  } else {
    addWord(paragraph, segment.text, segment.start, segment.end, probability(segment), element);
  }
  element.append(button, paragraph, notes(segment, reason));
  return element;
}

function block(start, end, className, p) {
  const element = make("i", className);
  element.style.left = `${100 * start / transcript.duration}%`;
  element.style.width = `${100 * (end - start) / transcript.duration}%`;
  if (p !== undefined) element.style.setProperty("--doubt", (1 - p).toFixed(3));
  map.append(element);
}

const all = [
  ...transcript.segments.map((segment) => [segment]),
  ...transcript.dropped.map((dropped) => [dropped.segment, dropped.reason]),
].sort(([a], [b]) => a.start - b.start);
for (const [segment, reason] of all) {
  if (!segment.text.trim()) continue;
  main.append(row(segment, reason));
  const p = probability(segment);
  block(segment.start, segment.end, reason !== undefined ? "left-out" : p > 0.75 ? "sure" : "", p);
}
for (const [start, end] of transcript.speech ?? []) block(start, end, "speech");
const head = make("b", "");
map.append(head);
units.sort((a, b) => a.start - b.start);
units.forEach((unit, i) => { unit.span.dataset.unit = i; });
$("about").textContent = [
  transcript.language + (transcript.language_probability === null ? "" : ` (${percent(transcript.language_probability)})`),
  transcript.task, clock(transcript.duration), transcript.model,
].join(" · ");
$("left-out").parentElement.hidden = !transcript.dropped.length;
$("left-out-count").textContent = transcript.dropped.length;

// ---- highlighting and seeking

function unitAt(time) {
  let low = 0, high = units.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (units[middle].start <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function show(time) {
  now = time;
  head.style.left = `${100 * Math.min(1, time / transcript.duration)}%`;
  const unit = units[unitAt(time)], next = unit && time < unit.end ? unit : null;
  if (next === current) return;
  if (current) {
    current.span.classList.remove("current");
    current.span.removeAttribute("aria-current");
  }
  if (next) {
    next.span.classList.add("current");
    next.span.setAttribute("aria-current", "true");
    if (!next.segment.classList.contains("current")) {
      main.querySelector(".segment.current")?.classList.remove("current");
      next.segment.classList.add("current");
      if ($("follow").checked) bring(next.segment);
    }
  }
  current = next;
}

function bring(element) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
}

function seek(time, play) {
  if (audio) {
    audio.currentTime = time;
    if (play) audio.play().catch(() => {});
  }
  show(time + 0.001);  // a player may stop just before the requested time
}

function frame() {
  show(audio.currentTime);
  if (!audio.paused) requestAnimationFrame(frame);
}

if (audio) {
  audio.addEventListener("play", frame);
  audio.addEventListener("timeupdate", () => { if (!audio.paused) show(audio.currentTime); });
  audio.addEventListener("seeked", () => show(audio.currentTime + 0.001));
  audio.addEventListener("error", () => { $("failure").hidden = false; });
}
main.addEventListener("click", (event) => {
  const span = event.target.closest(".word");
  if (span && getSelection().isCollapsed) seek(units[span.dataset.unit].start, true);
});
map.addEventListener("click", (event) => {
  const box = map.getBoundingClientRect();
  seek(transcript.duration * Math.max(0, event.clientX - box.left) / box.width, false);
});
main.addEventListener("wheel", () => { $("follow").checked = false; }, { passive: true });
main.addEventListener("touchmove", () => { $("follow").checked = false; }, { passive: true });

// ---- search

let finds = [], chosen = -1;

function search() {
  const wanted = $("search").value.trim().toLocaleLowerCase();
  for (const find of finds) for (const unit of find) unit.span.classList.remove("found", "chosen");
  finds = [];
  chosen = -1;
  if (wanted) {
    const bySegment = new Map();
    for (const unit of units) bySegment.set(unit.segment, [...(bySegment.get(unit.segment) ?? []), unit]);
    for (const some of bySegment.values()) findIn(some, wanted);
  }
  for (const find of finds) for (const unit of find) unit.span.classList.add("found");
  tell();
}

function findIn(some, wanted) {
  const text = some.map((unit) => unit.text).join("");
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    let begin = 0;
    finds.push(some.filter((unit) => {
      const touched = begin < at + wanted.length && begin + unit.text.length > at;
      begin += unit.text.length;
      return touched;
    }));
  }
}

function choose(step) {
  if (!finds.length) return;
  for (const unit of finds[chosen] ?? []) unit.span.classList.remove("chosen");
  chosen = chosen < 0 && step < 0 ? finds.length - 1 : (chosen + step + finds.length) % finds.length;
  for (const unit of finds[chosen]) unit.span.classList.add("chosen");
  bring(finds[chosen][0].segment);
  tell();
}

function tell() {
  const place = chosen < 0 ? "" : `${chosen + 1} of `;
  $("found").textContent = $("search").value.trim() ? `${place}${finds.length} found` : "";
}

$("search").addEventListener("input", search);
$("controls").addEventListener("submit", (event) => { event.preventDefault(); });
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") choose(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { $("search").value = ""; search(); $("search").blur(); }
});

// ---- switches and keys

$("colours").addEventListener("change", () => main.classList.toggle("colours", $("colours").checked));
$("left-out").addEventListener("change", () => main.classList.toggle("hide-left-out", !$("left-out").checked));

function nextSegment(step) {
  const rows = [...main.children], here = units[unitAt(now)]?.segment;
  const target = rows[rows.indexOf(here) + step];
  const unit = units.find((unit) => unit.segment === target);
  if (unit) seek(unit.start, false);
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, button, audio") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "/") $("search").focus();
  else if (event.key === " " && audio) { if (audio.paused) audio.play().catch(() => {}); else audio.pause(); }
  else if (step && event.shiftKey) nextSegment(step);
  else if (step) { const unit = units[unitAt(now) + step]; if (unit) seek(unit.start, false); }
  else return;
  event.preventDefault();
});
