"""Admission: files by their seconds together, live streams by what they cost."""

from contextlib import ExitStack

import pytest

from harken.serve.errors import RequestError
from harken.serve.work.admission import Admission


def make_admission(**given):
    return Admission(**{"max_queue_s": 100.0, "max_streams": 10, "max_load": 0.8} | given)


def test_files_are_taken_up_to_their_seconds_together():
    admission = make_admission()
    with admission.file(60.0), admission.file(40.0):
        assert (admission.queued_s, admission.n_files) == (100.0, 2)
        with pytest.raises(RequestError, match="100 s together") as refused, admission.file(1.0):
            pass
        assert refused.value.status == 429
        assert refused.value.retry_after_s
    assert admission.queued_s == 0
    with admission.file(1000.0):
        assert admission.n_files == 1, "a single one may be longer"


def test_the_time_to_come_back_follows_from_the_measured_speed():
    admission = make_admission()
    for _ in range(50):
        admission.record_file(service_s=50.0, audio_s=100.0)
    with admission.file(100.0), pytest.raises(RequestError) as refused, admission.file(1.0):
        pass
    assert refused.value.retry_after_s == pytest.approx(50.0, rel=0.01)


def test_streams_are_taken_while_their_measured_cost_leaves_room():
    admission = make_admission()
    with ExitStack() as streams:
        for _ in range(7):
            taken = streams.enter_context(admission.stream())
            admission.record_live(taken, service_s=1.0, audio_s=10.0)
        assert admission.load == pytest.approx(0.7)
        streams.enter_context(admission.stream())
        assert admission.load == pytest.approx(0.8), "a new one counts as the others until it has been measured"
        with pytest.raises(RequestError, match="80% of the machine") as refused, admission.stream():
            pass
        assert refused.value.status == 429
    assert (admission.load, admission.n_streams) == (0, 0)


def test_before_any_is_measured_their_plan_tells_the_cost():
    admission = make_admission(max_load=0.5)
    with ExitStack() as streams:
        for _ in range(2):
            taken = streams.enter_context(admission.stream())
            admission.record_live(taken, service_s=0.0, audio_s=0.1, planned_load=0.2)
        with pytest.raises(RequestError, match="20%"), admission.stream():
            pass


def test_short_streams_are_measured_together():
    admission = make_admission(max_load=0.5)
    for _ in range(2):
        with admission.stream() as short:
            admission.record_live(short, service_s=0.3, audio_s=3.0, planned_load=0.4)
    with ExitStack() as streams:
        for _ in range(5):
            streams.enter_context(admission.stream())
        with pytest.raises(RequestError, match=r"need 50%.* about 10%"), admission.stream():
            pass


def test_the_first_stream_is_always_taken_and_one_that_has_ended_is_not_recorded():
    admission = make_admission()
    with admission.stream() as ended:
        admission.record_live(ended, service_s=30.0, audio_s=10.0)
    with admission.stream():
        assert admission.n_streams == 1
    admission = make_admission()
    admission.record_live(ended, service_s=30.0, audio_s=10.0)
    with admission.stream(), admission.stream():
        assert admission.load == 0


def test_the_numbers_of_streams_and_of_files_being_received_are_limited(monkeypatch):
    monkeypatch.setattr("harken.serve.work.admission.MAX_UPLOADS", 1)
    admission = make_admission(max_streams=1)
    for room in (admission.stream, admission.upload):
        for _ in range(2):
            with room(), pytest.raises(RequestError, match="allowed are 1"), room():
                pass
