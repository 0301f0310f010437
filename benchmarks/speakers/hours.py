"""A recording of hours: memory and computing time of diarization in each of them, and of the clustering at the end.

The conversations of a kind are fed one behind the other, again and again, as fast as they are heard.

    python benchmarks/speakers hours CONVERSATIONS/report/clean-4 --hours 3 --save speakers-hours
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import process_time

import results
from arguments import limit_threads, note, parser, positive, require
from process_memory import resident_mb
from recordings import SAMPLE_RATE


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, metavar="FOLDER", help="recordings")
    options.add_argument("--hours", type=positive, default=3, metavar="H", help="length of the recording (3)")
    args = options.parse_args()
    require("harken", "scipy")
    limit_threads(args.threads)
    import harken
    from harken.audio import load_audio

    result = results.begin(args.save or "speakers-hours", {"threads": 1, "set": args.folder.name}, ("scipy",))
    diarization = harken.load_diarizer(threads=1).begin()
    paths = sorted(args.folder.glob("*.wav"))
    fed_s = hour_s = began_s = 0.0
    hours = 1
    for i in count():
        samples = load_audio(paths[i % len(paths)])
        before_s = process_time()
        diarization.feed(samples)
        hour_s += process_time() - before_s
        fed_s += len(samples) / SAMPLE_RATE
        if fed_s < hours * 3600:
            continue
        before_s = process_time()
        speakers = len(diarization.speakers)
        result.add(
            hour=hours,
            cpu_s_a_minute=round(60 * hour_s / (fed_s - began_s), 3),
            resident_mb=resident_mb(),
            clustering_s=round(process_time() - before_s, 2),
            speakers=speakers,
        )
        note(f"{hours} of {args.hours} hours")
        hour_s, began_s, hours = 0.0, fed_s, hours + 1
        if hours > args.hours:
            break
    if args.save:
        print(results.write(result))
