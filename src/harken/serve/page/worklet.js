// Runs in the thread of the audio: samples of the microphone as 16-bit blocks of a tenth of a second, with their level.

const BLOCKS_PER_S = 10;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = new Int16Array(Math.round(sampleRate / BLOCKS_PER_S));
    this.length = this.power = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.post();
      this.port.postMessage({ ended: true });
      this.ended = true;
    };
  }

  process([input]) {
    for (const sample of input[0] ?? []) {
      const bounded = Math.max(-1, Math.min(1, sample));
      this.samples[this.length++] = Math.round(bounded * 32767);
      this.power += bounded * bounded;
      if (this.length === this.samples.length) this.post();
    }
    return !this.ended;
  }

  post() {
    const block = this.samples.slice(0, this.length), rms = Math.sqrt(this.power / Math.max(1, this.length));
    this.length = this.power = 0;
    if (block.length) this.port.postMessage({ block, rms }, [block.buffer]);
  }
}

registerProcessor("recorder", Recorder);
