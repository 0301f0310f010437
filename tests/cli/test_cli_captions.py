"""Captions on an emulated terminal: rewriting leaves nothing behind, for any length of text and any width."""

import io
import re
from contextlib import contextmanager
from functools import partial
from os import terminal_size

import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from fakes.live_sessions import final_segment, interim_text, speech_ended, speech_started
from harken.cli.captions import CaptionDisplay

ESCAPES = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|(.|\n)", re.DOTALL)
STARTED, ENDED = speech_started(0.0), speech_ended(1.0)
interim, final = partial(interim_text, 1.0), partial(final_segment, 1.0)
TEXT = "And so my fellow Americans ask not what your country can do for you"


class Terminal(io.StringIO):
    """The part of a VT100 that captions need: rows that wrap and scroll, cursor up, erase row, dim text."""

    def __init__(self, width, height):
        super().__init__()
        self.width, self.height = width, height
        self.rows = [[]]
        self.row, self.column = 0, 0
        self.dim = False
        self.dimmed = ""

    def isatty(self):
        return True

    def write(self, text):
        for argument, command, character in ESCAPES.findall(text):
            if command:
                self._do(command, argument)
            else:
                self._put(character)
        return len(text)

    def _do(self, command, argument):
        match command, argument:
            case "A", _:
                # Rows that have scrolled out of the screen cannot be reached.
                highest = max(0, len(self.rows) - self.height)
                self.row = max(highest, self.row - int(argument or 1))
            case "K", "2":
                self.rows[self.row] = []
            case "m", _:
                self.dim = argument == "2"
            case _:
                raise AssertionError(f"the terminal does not know {command}{argument}")

    def _put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._next_row()
        else:
            cells = wcwidth.wcwidth(character)
            if self.column + cells > self.width:
                self._next_row()
            row = self.rows[self.row]
            row += [" "] * (self.column + cells - len(row))
            row[self.column : self.column + cells] = [character] + [""] * (cells - 1)
            self.column += cells
            self.dimmed += character if self.dim else ""

    def _next_row(self):
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append([])

    @property
    def text(self):
        """Text on the screen and in the scrollback, down to the cursor; nothing may be below it."""
        rows = ["".join(row).rstrip() for row in self.rows]
        assert not any(rows[self.row + 1 :])
        return "\n".join(rows[: self.row + 1])


@contextmanager
def display_on(terminal):
    """Return a display on a terminal that is standard output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        patch.setattr(
            "harken.cli.captions.get_terminal_size", lambda: terminal_size((terminal.width, terminal.height))
        )
        yield CaptionDisplay(lambda event: f"{event.segment.text.strip()}\n")


def show(events, width=30, height=10):
    terminal = Terminal(width, height)
    with display_on(terminal) as display:
        for event in events:
            display.show(event)
        display.close()
    return terminal


def test_committed_text_is_plain_and_tentative_text_dim():
    terminal = show([STARTED, interim(" ask not", " what your")])
    assert terminal.text == "ask not what your\n"
    assert terminal.dimmed == " what your"
    assert show([interim("", " ask")]).text == "ask\n"  # without the space that leads


def test_long_text_wraps_between_words():
    broken = "And so my fellow Americans\nask not what your country\ncan do for you"
    assert show([interim(" And so"), interim(TEXT)]).text == f"{broken}\n"
    assert show([interim(" And so", TEXT), final(TEXT)]).text.replace("\n", " ").split() == TEXT.split()


def test_end_of_text_longer_than_the_screen_is_shown():
    words = [f"word{i}" for i in range(40)]
    events = [interim(" ".join(words[:length])) for length in range(1, 41)]
    terminal = show(events, width=20, height=4)
    assert terminal.text.split() == words[-len(terminal.text.split()) :]
    assert len(terminal.text.splitlines()) == 3
    assert show([*events, final("word0 to word39")], width=20, height=4).text == "word0 to word39\n"


def test_narrowed_terminal_is_erased_completely():
    terminal = Terminal(40, 10)
    with display_on(terminal) as display:
        display.show(interim("one two three four five six seven eight"))
        terminal.width = 12
        terminal.rows = [list("one two thre"), list("e four five "), list("six seven"), list("eight")]
        terminal.row, terminal.column = 3, 5
        display.show(interim("nine"))
    assert terminal.text.strip("\n") == "nine"


def test_ctrl_c_sign_is_erased():
    for length in range(len(TEXT)):
        terminal = Terminal(30, 10)
        with display_on(terminal) as display:
            display.show(interim("", TEXT[:length]))
            terminal.write("^C")
            display.show(final("<end>"))
            terminal.write("^C")
            display.close()
        assert terminal.text == "<end>\n"


def test_message_is_written_above_live_text_unless_it_goes_elsewhere(monkeypatch, capsys):
    terminal = Terminal(30, 10)
    with display_on(terminal) as display:
        display.tell("harken: 2.0 s behind")
        assert (terminal.text, capsys.readouterr().err) == ("", "harken: 2.0 s behind\n")
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        display.show(interim(" ask", " not"))
        display.tell("harken: 2.0 s behind")
        assert terminal.text == "harken: 2.0 s behind\nask not"
        display.show(interim(" ask not", " what"))
        assert terminal.text == "harken: 2.0 s behind\nask not what"


texts = st.lists(
    st.sampled_from(["a", "of", "wonderful", "国家你好", "incomprehensibilities"]), max_size=30
).map(" ".join)


@given(
    utterances=st.lists(st.tuples(st.lists(texts, max_size=4), st.booleans()), max_size=4),
    width=st.integers(5, 40),
    height=st.integers(2, 6),
)
def test_only_final_lines_remain_also_of_an_utterance_without_a_segment(utterances, width, height):
    events = []
    for index, (interim_texts, has_segment) in enumerate(utterances):
        events += [STARTED, *(interim("", text) for text in interim_texts)]
        events += [*([final(f"<{index}>")] if has_segment else []), ENDED]
    lines = [f"<{index}>\n" for index, (_, has_segment) in enumerate(utterances) if has_segment]
    assert show(events, width, height).text == "".join(lines)
