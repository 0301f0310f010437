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

// ---- speakers

// The colours of Okabe and Ito, which colour-blind people can tell apart.
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442"];
const names = new Map();  // of the speakers, as they are edited, by the names in the JSON
for (const { name } of transcript.speakers ?? []) names.set(name, name);
for (const { speaker } of transcript.segments) if (speaker !== undefined && speaker !== null) names.set(speaker, speaker);
const order = [...names.keys()];
const nameOf = (speaker) => names.get(speaker)?.trim() || speaker;

function paint(element, speaker) {
  const index = order.indexOf(speaker);
  if (index >= 0) element.style.setProperty("--speaker", COLOURS[index % COLOURS.length]);
}

function showNames() {
  for (const label of main.querySelectorAll(".who")) label.textContent = `${nameOf(label.dataset.speaker)}:`;
}

function addNameField(speaker) {
  const label = make("label", ""), swatch = make("span", "swatch"), field = make("input", "");
  const seconds = (transcript.speakers ?? []).find(({ name }) => name === speaker)?.seconds;
  paint(swatch, speaker);
  field.value = speaker;
  field.maxLength = 100;
  field.setAttribute("aria-label", `Name of ${speaker}`);
  field.addEventListener("input", () => { names.set(speaker, field.value); showNames(); });
  label.append(swatch, field, make("small", "", seconds === undefined ? "" : ` ${clock(seconds)}`));
  $("names").append(label);
}

// Puts the edited names into a segment, a word or a turn. Speakers of the same name become one.
function rename(entry) {
  if (typeof entry.speaker === "string") entry.speaker = nameOf(entry.speaker);
  if (!entry.speakers) return;
  entry.speakers = [...new Set(entry.speakers.map(nameOf))];
  if (entry.speakers.length < 2) delete entry.speakers;
}

function renamedTranscript() {
  const copy = structuredClone(transcript);
  for (const segment of [...copy.segments, ...copy.dropped.map((dropped) => dropped.segment)]) {
    rename(segment);
    segment.words?.forEach(rename);
  }
  copy.turns?.forEach(rename);
  const seconds = new Map();
  for (const speaker of copy.speakers ?? []) {
    seconds.set(nameOf(speaker.name), (seconds.get(nameOf(speaker.name)) ?? 0) + speaker.seconds);
  }
  if (copy.speakers) copy.speakers = [...seconds].map(([name, seconds]) => ({ name, seconds }));
  return copy;
}

// This page as it was written, with the edited names in its JSON; what the script has added is left out.
function renamedPage() {
  const page = document.documentElement.cloneNode(true), part = (id) => page.querySelector(`#${id}`);
  for (const id of ["about", "map", "names", "found", "left-out-count", "text"]) part(id).replaceChildren();
  part("text").className = "colours";
  part("failure")?.setAttribute("hidden", "");
  part("speakers").setAttribute("hidden", "");
  const escape = (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const json = JSON.stringify(renamedTranscript()).replace(/[<\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g, escape);
  part("transcript").textContent = `${json}\n`;
  const html = page.outerHTML.replace(/\s*<\/body>\s*<\/html>$/, "\n</body>\n</html>\n");
  return `<!doctype html>\n${html}`;
}

function savePage() {
  const link = make("a", "");
  link.href = URL.createObjectURL(new Blob([renamedPage()], { type: "text/html" }));
  link.download = decodeURIComponent(location.pathname.split("/").pop()) || "transcript.html";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

order.forEach(addNameField);
$("speakers").hidden = !order.length;
$("save").addEventListener("click", savePage);

// ---- the text

let lastSpeaker;  // of the row before

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
  paragraph.lang = transcript.task === "translate" ? "en" : segment.language || transcript.language;
  paragraph.dir = "auto";
  if (typeof segment.speaker === "string" && segment.speaker !== lastSpeaker) {
    const label = make("bdi", "who", `${nameOf(segment.speaker)}:`);
    label.dataset.speaker = segment.speaker;
    paragraph.append(label, " ");
  }
  lastSpeaker = segment.speaker;
  paint(paragraph, segment.speaker);
  if (segment.words?.length) {
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
  return element;
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
if (order.length) for (const { start, end, speaker } of transcript.turns ?? []) paint(block(start, end, "turn"), speaker);
else for (const [start, end] of transcript.speech ?? []) block(start, end, "speech");
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
