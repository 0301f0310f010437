// The microphone: blocks of samples while it is open, and the recording of all of them.

const MAX_RATE = 48_000; // the greatest that the server takes
const BLOCKS_A_BLOB = 300; // the browser may keep a blob on disk, so a long recording costs little memory
const CLOSE_MS = 1000; // a device that went away may never answer
const HEADER_BYTES = 44;
const SAMPLE_BYTES = 2;

const REFUSALS = {
  NotAllowedError: "The browser may not use the microphone. Allow it beside the address of this page, and start again.",
  NotFoundError: "No microphone was found.",
  OverconstrainedError: "That microphone is not there any more. Choose another one.",
  NotReadableError: "The microphone cannot be used; another program may have taken it.",
};

/** Return why this page cannot have the microphone at all, or an empty text. */
export function problem() {
  if (!isSecureContext) {
    return "The browser gives the microphone only to pages at https:// or on this same machine (localhost). " +
      "Start harken serve with --certfile and --keyfile, or open this page on the machine itself. Files work here as well.";
  }
  return navigator.mediaDevices && window.AudioWorkletNode ? "" : "This browser gives no microphone to web pages.";
}

/** Return in plain words why the microphone was not opened. */
export function refusal(error) {
  return REFUSALS[error.name] ?? `The microphone cannot be opened: ${error.message}`;
}

export class Microphone {
  /** Open a device; `onBlock` is called with samples and their level, `onEnd` if the device goes away. */
  static async open(device, onBlock, onEnd) {
    const untouched = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    const audio = { channelCount: 1, ...untouched, ...(device ? { deviceId: { exact: device } } : {}) };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    try {
      const context = await openContext();
      return new Microphone(stream, context, onBlock, onEnd);
    } catch (error) {
      for (const track of stream.getTracks()) track.stop();
      throw error;
    }
  }

  constructor(stream, context, onBlock, onEnd) {
    Object.assign(this, { stream, context, rate: context.sampleRate, blobs: [], blocks: [], bytes: 0 });
    this.node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
    this.ended = new Promise((resolve) => {
      this.node.port.onmessage = ({ data }) => {
        if (data.ended) resolve();
        else this.take(data.block, data.rms, onBlock);
      };
    });
    context.createMediaStreamSource(stream).connect(this.node);
    stream.getAudioTracks()[0].addEventListener("ended", onEnd);
  }

  /** Seconds that were recorded. */
  get seconds() {
    return this.bytes / SAMPLE_BYTES / this.rate;
  }

  take(block, rms, onBlock) {
    this.blocks.push(block);
    this.bytes += block.byteLength;
    if (this.blocks.length === BLOCKS_A_BLOB) this.blobs.push(new Blob(this.blocks.splice(0)));
    onBlock(block, rms);
  }

  /** Close it, behind the last samples. */
  async close() {
    this.node.port.postMessage("end");
    await Promise.race([this.ended, new Promise((resolve) => setTimeout(resolve, CLOSE_MS))]);
    for (const track of this.stream.getTracks()) track.stop();
    await this.context.close();
  }

  /** Return the recording as a WAV file. */
  recording() {
    return new Blob([wavHeader(this.bytes, this.rate), ...this.blobs, ...this.blocks], { type: "audio/wav" });
  }
}

async function openContext() {
  let context = new AudioContext();
  if (context.sampleRate > MAX_RATE) {
    await context.close();
    context = new AudioContext({ sampleRate: MAX_RATE });
  }
  await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
  await context.resume();
  return context;
}

function wavHeader(bytes, rate) {
  const header = new DataView(new ArrayBuffer(HEADER_BYTES)), ascii = (at, text) => [...text].forEach((c, i) => header.setUint8(at + i, c.charCodeAt(0)));
  ascii(0, "RIFF");
  header.setUint32(4, HEADER_BYTES - 8 + bytes, true);
  ascii(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // a channel
  header.setUint32(24, rate, true);
  header.setUint32(28, rate * SAMPLE_BYTES, true);
  header.setUint16(32, SAMPLE_BYTES, true);
  header.setUint16(34, 8 * SAMPLE_BYTES, true);
  ascii(36, "data");
  header.setUint32(40, bytes, true);
  return header.buffer;
}
