// A live stream to the server, which outlasts a lost connection: what was not received is sent again.

import { openSocket, request } from "./api.js";

const KEPT_S = 120; // longer than any server waits for a lost client
const RETRY_MS = [300, 1000, 2000, 4000];
const ACK_EVERY = 50;

export class Connection {
  /** `on` has functions for `message`, `lost` and `back`; the promise `closed` tells how it ended. */
  constructor(hello, on, captions = "") {
    Object.assign(this, { hello, on, path: captions ? `v1/stream?captions=${captions}` : "v1/stream", ready: null, seq: 0, ending: false, tries: 0 });
    this.bytesPerS = hello.audio.rate * 2;
    this.kept = []; // the last blocks, which may have to be sent again
    this.sent = 0; // bytes, in all connections together
    this.closed = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.connect();
  }

  send(block) {
    this.kept.push({ at: this.sent, block });
    this.sent += block.byteLength;
    while (this.sent - this.kept[0].at > KEPT_S * this.bytesPerS) this.kept.shift();
    if (this.open) this.socket.send(block);
  }

  /** End the stream behind what was sent. */
  end() {
    this.ending = true;
    if (this.open) this.socket.send('{"type": "end"}');
  }

  async connect() {
    try {
      this.socket = await openSocket(this.path);
    } catch (error) {
      this.lost(error);
      return;
    }
    this.socket.onopen = () => {
      this.socket.onclose = () => this.lost(new Error("The connection to the server was lost."));
      this.socket.send(JSON.stringify(this.greeting()));
    };
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = () => this.refused();
  }

  /** Go on without a socket, for the reason that the server gives to a request; a browser tells none. */
  async refused() {
    try {
      await request(this.path);
      throw new Error("A proxy before the server opens no WebSocket.");
    } catch (error) {
      this.lost(error);
    }
  }

  greeting() {
    if (!this.ready) return { type: "hello", ...this.hello };
    return { type: "resume", session: this.ready.session, token: this.ready.resume_token, seq: this.seq };
  }

  take(message) {
    if (message.type === "error") {
      this.finish(() => this.reject(new Error(message.message)));
    } else if (message.type === "done") {
      this.finish(this.resolve);
    } else if (message.type === "ready") {
      this.goOn(message);
    } else if (message.event) {
      this.seq = message.seq;
      if (this.seq % ACK_EVERY === 0) this.socket.send(JSON.stringify({ type: "ack", seq: this.seq }));
      this.on.message(message);
    }
  }

  /** Send what the server has not received yet. */
  goOn(ready) {
    const isBack = this.ready !== null;
    this.ready = ready;
    this.tries = 0;
    if (this.kept.length && this.kept[0].at > ready.received) {
      this.finish(() => this.reject(new Error("The connection was lost for too long.")));
      return;
    }
    for (const { at, block } of this.kept) {
      const from = Math.max(0, ready.received - at);
      if (from < block.byteLength) this.socket.send(new Uint8Array(block.buffer, block.byteOffset + from, block.byteLength - from));
    }
    this.open = true;
    if (this.ending) this.end();
    if (isBack) this.on.back();
  }

  lost(error) {
    if (this.over) return;
    this.lostMs = this.open || !this.lostMs ? performance.now() : this.lostMs;
    this.open = false;
    const isTooLate = performance.now() - this.lostMs > 1000 * (this.ready?.resume_s ?? 0);
    if (!this.ready || isTooLate) {
      this.finish(() => this.reject(error));
      return;
    }
    this.on.lost();
    setTimeout(() => this.connect(), RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)]);
  }

  finish(settle) {
    this.over = true;
    this.open = false;
    this.socket?.close();
    settle();
  }
}
