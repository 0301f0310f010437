// Requests to the server, with the key if it wants one.

const ROOT = new URL("../", import.meta.url); // works behind a proxy that puts the server under a folder, too
const KEY = "harken.key";
let onKeyWanted = () => {};

export class RequestFailed extends Error {
  constructor(message, status, retryAfterS) {
    super(message);
    Object.assign(this, { status, retryAfterS });
  }
}

/** Set the function to call when the server refuses the key. */
export function whenKeyIsWanted(callback) {
  onKeyWanted = callback;
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

const key = () => sessionStorage.getItem(KEY);

/** Return the address of the captions of a name; with the key, behind its # and so for the page alone. */
export function captionsAddress(name) {
  return new URL(`captions?name=${name}${key() ? `#key=${encodeURIComponent(key())}` : ""}`, ROOT).href;
}

/** Send a request; throw the server's one line if it refuses. */
export async function request(path, options = {}) {
  const headers = { ...options.headers, ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestFailed("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  if (response.status === 401) onKeyWanted();
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? `The server answered with ${response.status}.`;
  throw new RequestFailed(message, response.status, Number(response.headers.get("retry-after")) || null);
}

export async function info() {
  return (await request("v1/harken/info")).json();
}

/** Return a transcript as a file of a format. */
export async function render(transcript, format) {
  const body = JSON.stringify(transcript), headers = { "Content-Type": "application/json" };
  return (await request(`v1/harken/render?format=${encodeURIComponent(format)}`, { method: "POST", body, headers })).blob();
}

/** Yield the objects of a response of server-sent events. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new RequestFailed("The connection to the server was lost.", 0);
    });
    if (done) return;
    const lines = (unread + value).split("\n");
    unread = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice("data: ".length));
    }
  }
}

/** Open a WebSocket. It cannot send headers, so a key is traded for one that is good for minutes. */
export async function openSocket(path) {
  const url = new URL(path, ROOT);
  url.protocol = url.protocol.replace("http", "ws");
  const protocols = [];
  if (key()) {
    const secret = await (await request("v1/realtime/client_secrets", { method: "POST", body: "{}" })).json();
    protocols.push("realtime", `openai-insecure-api-key.${secret.value}`);
  }
  return new WebSocket(url, protocols);
}
