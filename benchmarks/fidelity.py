"""Windows as the reference makes them against windows with a little silence: word error rates and time.

``exact`` encodes 30 s, with zeros behind the end of the recording; a row with a number encodes that many seconds
of silence behind the end, 30 of them being all of the window. harken's own number is in `harken.transcribe.recording`.

    python benchmarks/fidelity.py --silence 2 4 6 30
"""

from __future__ import annotations

from time import perf_counter

from common import machine, parser, positive, read_set, require, run, table, word_error_rate

SETS = ("librispeech-test-other", "librispeech-train-clean", "arctic", "ljspeech")
HARKENS_OWN_S = 4


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--precision", default="int8", metavar="P", help="precision to compute in (int8)")
    its.add_argument(
        "--silence", type=positive, nargs="*", default=[HARKENS_OWN_S], metavar="S", help="seconds (4)"
    )
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings of each set")
    args = its.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    import harken
    from harken.transcribe import window_decoder
    from harken.types import FRAMES_PER_SECOND

    print(machine())
    recognizer = harken.load("tiny.en", precision=args.precision, threads=args.threads)
    sets = {name: read_set(args.audio, name, args.limit) for name in SETS}
    rows = []
    for silence_s in (None, *args.silence):
        window_decoder.FINAL_SILENCE_FRAMES = (silence_s or 0) * FRAMES_PER_SECOND
        fidelity = "fast" if silence_s else "exact"
        cells: list[str] = []
        texts: list[tuple[str, str]] = []
        began = perf_counter()
        for recordings in sets.values():
            hypotheses = [recognizer.transcribe(its.path, fidelity=fidelity).text for its in recordings]
            references = [its.text for its in recordings]
            cells.append(f"{word_error_rate(references, hypotheses):.2f}")
            texts += zip(references, hypotheses, strict=True)
        took_s = perf_counter() - began
        all_of_them = word_error_rate(*map(list, zip(*texts, strict=True)))
        rows.append([str(silence_s or "exact"), *cells, f"{all_of_them:.2f}", f"{took_s:.0f}"])
        print(f"\n{table(('silence, s', *sets, 'all, WER %', 'seconds'), rows)}", flush=True)


if __name__ == "__main__":
    run(main)
