"""A live session of many hours: memory and computing time of each of them.

The recordings of a set are fed one behind the other, again and again, as fast as they are transcribed. Where memory or
the time for a minute of audio grew with the stream, the last hour would show it.

    python benchmarks/streaming hours --hours 10 --save live-hours
"""

from __future__ import annotations

from itertools import count
from time import process_time

import results
from arguments import limit_threads, note, parser, positive, require
from process_memory import resident_mb
from recordings import GAP_S, SAMPLE_RATE, read_set


def main() -> None:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--hours", type=positive, default=10, metavar="H", help="length of the stream (10)")
    options.add_argument("--delay", default="low", metavar="D", help="name or milliseconds (low)")
    options.add_argument("--finals", default="exact", choices=["exact", "streamed"], help="(exact)")
    options.add_argument(
        "--set", default="librispeech-train-clean", metavar="NAME", help="recordings to repeat"
    )
    args = options.parse_args()
    require("harken")
    limit_threads(args.threads)
    import numpy as np

    import harken
    from harken.audio import load_audio
    from harken.streaming import FinalSegment

    settings = {
        "model": args.model, "threads": args.threads, "delay": args.delay, "finals": args.finals, "set": args.set,
    }  # fmt: skip
    result = results.begin(args.save or "live-hours", settings)
    session = harken.load(args.model, threads=args.threads).stream(
        delay=args.delay, finals=args.finals, clock=None
    )
    entries = read_set(args.audio, args.set, model=args.model)
    silence = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    fed_s = hour_s = began_s = 0.0
    hours, words = 1, 0
    for i in count():
        samples = np.concatenate([load_audio(entries[i % len(entries)].path), silence])
        before_s = process_time()
        events = session.feed(samples)
        hour_s += process_time() - before_s
        words += sum(len(event.segment.text.split()) for event in events if isinstance(event, FinalSegment))
        fed_s += len(samples) / SAMPLE_RATE
        if fed_s < hours * 3600:
            continue
        result.add(
            hour=hours,
            cpu_s_a_minute=round(60 * hour_s / (fed_s - began_s), 3),
            words=words,
            resident_mb=resident_mb(),
        )
        note(f"{hours} of {args.hours} hours")
        hour_s, began_s, words, hours = 0.0, fed_s, 0, hours + 1
        if hours > args.hours:
            break
    if args.save:
        print(results.write(result))
