"""Subtitles that break a rule: of segments as they are, and of the cues that are made of words.

Every cue is checked against the rules of the style. Speech that is too fast to be read breaks a rule however it is cut,
so cues that break no other rule than that of the reading speed are counted apart.

    python benchmarks/subtitles.py --save subtitles
"""

from __future__ import annotations

from collections.abc import Iterator

from program import Args, Parser, Row, add, main
from recordings import read_sets

AS_THEY_ARE = "segments as they are"


def options(parser: Parser) -> None:
    add(parser, "--style", ("plain", "netflix", "bbc"), "styles")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for the segments and the cues of each style."""
    import harken
    from harken.formats import Layout, render
    from harken.formats.cue_check import check_cues, parse_cues

    recognizer = harken.load(args.model, threads=args.threads)
    transcripts = [
        recognizer.transcribe(entry.path, language=entry.language, word_timestamps=True).result()
        for _, entry in read_sets(args)
    ]
    for style in args.style:
        rules = Layout(subtitle_style=style)
        for made, layout in ((AS_THEY_ARE, Layout()), ("cues made of words", rules)):
            cues = [[*parse_cues("".join(render(each, "srt", layout)))] for each in transcripts]
            broken = [(index, each) for index, of_one in enumerate(cues) for each in check_cues(of_one, rules)]
            breaking = {(index, each.number) for index, each in broken}
            other = {(index, each.number) for index, each in broken if each.rule != "max_reading_speed"}
            yield {
                "style": style,
                "cues": made,
                "number": sum(map(len, cues)),
                "breaking": len(breaking),
                "only_too_fast": len(breaking - other),
                "rules": ", ".join(sorted({each.rule for _, each in broken})),
            }


if __name__ == "__main__":
    main(rows, options, model="tiny.en", sets=("long-form",))
