// The captions of a live session, for OBS or a second screen. All is chosen in the address; a key stands behind its #.

import { events, request, setKey } from "./api.js";
import { $, make } from "./dom.js";

const RETRY_MS = 2000;
const SILENCE_MS = 40_000; // the server says something more often
const HEX = /^([\da-f]{3,4}|[\da-f]{6}|[\da-f]{8})$/i; // a colour without its #, which would end the address

const oneOf = (...values) => (value) => values.includes(value);
const css = (property) => (value) => CSS.supports(property, value);
const OPTIONS = {
  name: { fits: (value) => /^[\w-]{1,64}$/.test(value), allowed: "that of a session: letters, digits, - and _" },
  lines: { usual: "2", fits: (value) => /^([1-9]|10)$/.test(value), allowed: "1 to 10" },
  size: { usual: "48px", fits: css("font-size"), allowed: "a size such as 48px or 5vw" },
  color: { usual: "white", fits: css("color"), allowed: "a colour such as white or ffe97a" },
  background: { usual: "transparent", fits: css("background-color"), allowed: "a colour such as black or 000000a0" },
  align: { usual: "center", fits: oneOf("left", "center", "right"), allowed: "left, center or right" },
  tentative: { usual: "1", fits: oneOf("0", "1"), allowed: "0 or 1" },
};

/** Return the options in the address; throw a line about one that is not allowed. */
function chosen() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(Object.entries(OPTIONS).map(([option, { usual = "", fits, allowed }]) => {
    let value = query.get(option) ?? usual;
    if (HEX.test(value) && ["color", "background"].includes(option)) value = `#${value}`;
    if (option === "size" && /^\d+$/.test(value)) value += "px";
    if (!fits(value)) throw new Error(`${option}=${value}: allowed is ${allowed}`);
    return [option, value];
  }));
}

function complain(sentence) {
  $("problem").textContent = sentence;
  $("problem").hidden = !sentence;
}

/** Show captions as they come, of one session after another, also after a lost connection. */
async function watch({ name, tentative }) {
  for (;;) {
    const silence = new AbortController();
    let timer;
    try {
      for await (const caption of events(await request(`v1/captions/${name}`, { signal: silence.signal }))) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        complain("");
        show(caption, tentative === "1");
      }
    } catch (error) {
      if (error.status >= 400 && error.status < 500) complain(error.message); // else nobody but the viewers would see it
    }
    clearTimeout(timer);
    $("captions").classList.add("over");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function show({ lines, committed, tentative, live }, withTentative) {
  const now = [make("span", { textContent: committed.trimStart() })];
  if (withTentative) now.push(make("span", { className: "tentative", textContent: committed ? tentative : tentative.trimStart() }));
  const settled = lines.map((line) => make("p", { dir: "auto", textContent: line }));
  $("captions").replaceChildren(...settled, make("p", { dir: "auto" }, ...now));
  $("captions").classList.toggle("over", !live);
}

const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key) {
  setKey(key);
  history.replaceState(null, "", location.pathname + location.search); // nobody need see it
}
try {
  const options = chosen(), { style, classList } = document.documentElement;
  for (const [option, value] of Object.entries(options)) style.setProperty(`--${option}`, value);
  classList.toggle("outlined", options.background === OPTIONS.background.usual);
  watch(options);
} catch (error) {
  complain(error.message);
}
