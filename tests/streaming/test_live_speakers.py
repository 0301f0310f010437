"""The speakers of live sessions: of final segments at once, corrected for a while, and in what the command writes."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import window_text
from fakes.live_sessions import ScriptedLiveSession, hears
from fakes.speakers import FIRST, SECOND, SILENCE, conversation, level_diarizer
from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import ToneBackend
from harken.api import Recognizer
from harken.errors import OptionError
from harken.streaming import FinalSegment, SpeakersChanged, SpeechEnded
from harken.streaming.session import LiveSpeakers
from harken.types import SAMPLE_RATE
from tiny_models import TOKENIZER
from transcripts import spoken


def said(start_s, *words, speakers=(), index=0):
    """Return a segment with a word each half a second."""
    times_s = [(start_s + n / 2, start_s + (n + 1) / 2) for n in range(len(words))]
    timed = ((*span, f" {word}", speakers) for span, word in zip(times_s, words, strict=True))
    return spoken(*timed, index=index, speakers=speakers)


def told(at_s, segment, kind=FinalSegment):
    samples = round(at_s * SAMPLE_RATE)
    return kind(audio_s=segment.end_s, emitted_samples=samples, compute_s=0.0, segment=segment)


# The second voice begins at 10 s; at 11.6 s it is not known yet.
TALK = conversation((FIRST, 10), (SECOND, 6), (SILENCE, 4))
SCRIPT = (
    told(9.8, said(8.0, "one", "two", "three")),
    told(11.6, said(9.0, "four", "five", "six", "seven", "eight")),
    SpeechEnded(audio_s=11.6, emitted_samples=round(11.6 * SAMPLE_RATE), compute_s=0.0, reason="silence"),
)


def followed(block_samples):
    """Return the events of the script with the speakers of the talk."""
    speakers = LiveSpeakers(level_diarizer().begin_live(5.0), lambda text: [len(text)])
    events = []
    edges = [*range(0, len(TALK), block_samples), len(TALK)]
    for start, end in pairwise(edges):
        due = [event for event in SCRIPT if start < event.emitted_samples <= end]
        events += speakers.follow(TALK[start:end], due)
    return events + speakers.end([])


class TestEvents:
    def test_final_segment_has_speakers_at_once_and_an_event_corrects_them(self):
        """In blocks of any size."""
        first, second, _, correction = events = followed(16_000)
        assert [type(event) for event in events] == [FinalSegment, FinalSegment, SpeechEnded, SpeakersChanged]
        assert first.segment.speakers == ("A",)
        assert [word.speakers for word in second.segment.words] == [("A",)] * 5
        assert correction.segment.index == second.segment.index == 1
        assert [word.speakers for word in correction.segment.words] == [("A",)] * 2 + [("B",)] * 3
        assert correction.segment.speakers == ("B", "A")
        assert correction.segment.text == second.segment.text
        assert correction.emitted_samples <= (10.5 + 5.0) * SAMPLE_RATE
        for block_samples in (1_000, 7_777, 100_000, 1_000_000):
            assert followed(block_samples) == events

    def test_segment_is_cut_where_the_speaker_changes_and_numbered_on(self):
        speakers = LiveSpeakers(level_diarizer().begin_live(5.0), lambda text: [len(text)])
        events = speakers.follow(TALK[: 16 * SAMPLE_RATE], [told(16.0, said(9.0, "four", "five", "six"))])
        finals = [event.segment for event in events if isinstance(event, FinalSegment)]
        found = [(segment.index, segment.text, segment.speakers) for segment in finals]
        assert found == [(0, " four five", ("A",)), (1, " six", ("B",))]
        assert [event.audio_s for event in events] == [10.0, 10.5]


class TestCommand:
    """`harken listen --speakers` over a scripted session."""

    SCRIPT = (
        told(0.1, said(0.0, "hello", "there", speakers=("A",), index=0)),
        told(0.2, said(1.0, "yes", "well", "no", speakers=("A",), index=1)),
        told(0.3, said(4.0, "good", "bye", speakers=("B",), index=2)),
        told(0.4, said(1.0, "yes", "well", "no", speakers=("B",), index=1), SpeakersChanged),
    )

    @pytest.fixture
    def cli(self, cli):
        cli.loaders["load_diarizer"] = lambda *args, **options: level_diarizer()
        cli.use_texts(window_text(0, "unheard", 1))
        AUDIO_FORMATS["wav s16"].write(Path("talk"), 1.2)
        return cli

    def test_speaker_is_shown_where_it_changes(self, cli):
        session = hears(cli.monkeypatch, ScriptedLiveSession(self.SCRIPT))
        outcome = cli.run("listen", "talk.wav", "--speakers", "--speaker-delay", 3)
        assert outcome.out.splitlines() == ["A: hello there", "yes well no", "B: good bye"]
        assert session.diarizing["speaker_delay"] == 3.0

    def test_json_has_the_corrections(self, cli):
        hears(cli.monkeypatch, ScriptedLiveSession(self.SCRIPT))
        lines = [
            json.loads(line) for line in cli.run("listen", "talk.wav", "--speakers", "--json").out.splitlines()
        ]
        assert [line["event"] for line in lines] == ["final_segment"] * 3 + ["speakers_changed"]
        assert (lines[-1]["segment"]["id"], lines[-1]["segment"]["speaker"]) == (1, "B")

    @pytest.mark.parametrize("transcript", ["talk.json", "talk.rttm"])
    def test_transcript_has_the_corrected_speakers(self, cli, transcript):
        hears(cli.monkeypatch, ScriptedLiveSession(self.SCRIPT))
        cli.run("listen", "talk.wav", "--speakers", "-o", transcript)
        text = Path(transcript).read_text(encoding="utf-8")
        if transcript.endswith("rttm"):
            assert [line.split()[7] for line in text.splitlines()] == ["A", "B", "B"]
        else:
            written = json.loads(text)
            texts = [segment["text"] for segment in written["segments"]]
            assert texts == [" hello there", " yes well no", " good bye"]
            assert [speaker["name"] for speaker in written["speakers"]] == ["A", "B"]

    def test_a_delay_without_speakers_or_out_of_range_is_refused(self, cli):
        hears(cli.monkeypatch, ScriptedLiveSession(()))
        assert cli.run("listen", "talk.wav", "--speaker-delay", 3).code == 2
        cli.monkeypatch.undo()
        recognizer = Recognizer(ToneBackend(), TOKENIZER, "tones", speech_detector=LoudIsSpeech)
        with pytest.raises(OptionError, match="speaker_delay"):
            recognizer.stream_many(2, clock=None, diarizer=level_diarizer(), speaker_delay=np.inf)
