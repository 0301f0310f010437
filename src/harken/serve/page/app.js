// The page of `harken serve`: its parts put together.

import { info, setKey, whenKeyIsWanted } from "./api.js";
import { offer, remember } from "./choices.js";
import { $ } from "./dom.js";
import { take, whenFileIsDone } from "./files.js";
import { prepare } from "./live.js";

const RETRY_MS = 3000;

/** Ask the server what it can do; it may not have loaded a model yet. */
async function ask() {
  try {
    const able = await info();
    offer(able);
    const loading = able.models.length && !able.models.some((model) => model.loaded) ? " · no model is loaded yet" : "";
    tell(`version ${able.version}${loading}`);
    $("key-wanted").hidden = true;
  } catch (error) {
    tell(error.message, true);
    if (error.status !== 401) setTimeout(ask, RETRY_MS);
  }
}

function tell(sentence, trouble = false) {
  $("server").textContent = sentence;
  $("server").classList.toggle("trouble", trouble);
}

function wantKey() {
  $("key-wanted").hidden = false;
  $("key").focus();
}

function hasFiles(event) {
  return event.dataTransfer?.types.includes("Files");
}

whenKeyIsWanted(wantKey);
whenFileIsDone(ask);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value.trim());
  $("key").value = "";
  ask();
});
$("files").addEventListener("change", () => {
  take($("files").files);
  $("files").value = "";
});
addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("over");
});
addEventListener("drop", (event) => {
  document.body.classList.remove("over");
  if (!hasFiles(event)) return;
  event.preventDefault();
  take(event.dataTransfer.files);
});
remember();
prepare();
ask();
