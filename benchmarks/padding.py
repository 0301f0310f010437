"""What stands behind the end of a recording: word error rates with zeros, as in the reference, and with silence.

python benchmarks/padding.py
"""

from __future__ import annotations

from common import machine, parser, positive, read_set, require, run, table, word_error_rate

SETS = ("librispeech-test-other", "librispeech-train-clean", "arctic", "ljspeech")
PADDINGS = ("zeros", "silence")


def main() -> None:
    its = parser(__doc__)
    its.add_argument(
        "--precision", nargs="+", default=["int8"], metavar="P", help="precisions to compute in (int8)"
    )
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings of each set")
    args = its.parse_args()
    require("harken", "jiwer", "whisper_normalizer")
    import harken

    print(machine())
    rows = []
    for precision in args.precision:
        recognizer = harken.load("tiny.en", precision=precision, threads=args.threads)
        for name in SETS:
            recordings = read_set(args.audio, name, args.limit)
            rates = [
                word_error_rate(
                    [recording.text for recording in recordings],
                    [recognizer.transcribe(recording.path, padding=padding).text for recording in recordings],
                )
                for padding in PADDINGS
            ]
            rows.append([f"{name}, {precision}", str(len(recordings)), *(f"{rate:.2f}" for rate in rates)])
    print(f"\n{table(('set', 'files', *(f'WER %, {padding}' for padding in PADDINGS)), rows)}")


if __name__ == "__main__":
    run(main)
