// What the user chooses: model, language, translation, words to expect, delay. The browser remembers it.

import { captionsAddress } from "./api.js";
import { $, make } from "./dom.js";

const STORED = "harken.choices";
const FIELDS = ["model", "language", "task", "hotwords", "delay", "device"];
const DELAYS = {
  minimal: "soonest, with more errors",
  low: "soon",
  medium: "in good time",
  high: "later, with fewest errors",
};
const DETECT = "";

let server = { models: [] };
let wanted = stored(); // what was chosen, also where the chosen model does not offer it

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

/** Offer what the server can do. */
export function offer(info) {
  server = info;
  fill($("model"), info.models.map(({ id }) => [id, id]), wanted.model);
  fill($("delay"), info.delays.map((name) => [name, DELAYS[name] ?? name]), wanted.delay ?? "low");
  offerAbilities();
}

/** Offer what the chosen model can do. */
function offerAbilities() {
  const model = server.models.find(({ id }) => id === $("model").value);
  const languages = (model?.languages ?? []).map(({ code, name }) => [code, name[0].toUpperCase() + name.slice(1)]);
  languages.sort(([, a], [, b]) => a.localeCompare(b));
  const choices = model?.multilingual === false ? languages : [[DETECT, "Detect it"], ...languages];
  fill($("language"), choices, wanted.language);
  $("language").disabled = choices.length < 2;
  const tasks = model?.tasks ?? ["transcribe"];
  $("task-field").hidden = !tasks.includes("translate");
  $("task").value = tasks.includes(wanted.task) ? wanted.task : "transcribe";
}

/** Fill a list, unless it is the same as before: somebody may be choosing from it. */
function fill(select, choices, value) {
  const offered = JSON.stringify(choices);
  if (select.dataset.offered === offered) return;
  select.dataset.offered = offered;
  select.replaceChildren(...choices.map(([value, text]) => make("option", { value, textContent: text })));
  if (choices.some(([offered]) => offered === value)) select.value = value;
}

/** Offer the microphones that the browser names. */
export function offerDevices(devices) {
  const named = devices.filter(({ kind, deviceId, label }) => kind === "audioinput" && deviceId && label);
  const others = named.filter(({ deviceId }) => deviceId !== "default");
  fill($("device"), [["", "Default microphone"], ...others.map(({ deviceId, label }) => [deviceId, label])], wanted.device);
}

/** Return what is chosen. */
export function chosen() {
  const hotwords = $("hotwords").value.split(",").map((word) => word.trim()).filter(Boolean);
  const [model, language, task, delay, device] = ["model", "language", "task", "delay", "device"].map((id) => $(id).value);
  return { model, language, task, delay, device, hotwords, captions: $("captions").checked ? wanted.captions : "" };
}

/** Remember every choice from now on, and what was typed before. */
export function remember() {
  $("hotwords").value = wanted.hotwords ?? "";
  for (const id of FIELDS) {
    $(id).addEventListener("change", () => {
      keep({ [id]: $(id).value });
      if (id === "model") offerAbilities();
    });
  }
  $("captions").addEventListener("change", nameCaptions);
  $("choices").addEventListener("submit", (event) => event.preventDefault());
}

function keep(choice) {
  wanted = { ...wanted, ...choice };
  try {
    localStorage.setItem(STORED, JSON.stringify(wanted));
  } catch {
    // A browser that keeps nothing still uses it.
  }
}

/** Show where captions are to be seen, always at the same address, or that there are none. */
function nameCaptions() {
  if (!wanted.captions) keep({ captions: crypto.randomUUID().slice(0, 8) });
  $("captions-link").href = captionsAddress(wanted.captions);
  $("captions-note").hidden = !$("captions").checked;
}
