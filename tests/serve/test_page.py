"""The page in a browser: a file, the microphone, and that everybody can use it."""

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import find_browser, open_page
from served_audio import pcm, wav
from websockets.sync.client import connect

from harken.audio import load_audio
from harken.cli.root import main
from harken.serve.options import ServeOptions
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE
from serving import serving

pytestmark = pytest.mark.real
FAR_NAME = "harken.test"
"""A name by which the browser takes the server for another machine."""
KEY = "a-key-of-the-tests"
SPEECH_S = 3.6
"""Seconds of the example up to a pause."""

CONTROLS_WITHOUT_A_NAME = """
[...document.querySelectorAll("button, input, select, a, canvas[role]")]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent).trim())
  .map((e) => e.outerHTML)
"""
CONTROLS = """
[...document.querySelectorAll("button, input, select, a[href]")]
  .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled && e.tabIndex >= 0)
"""
FIRST_CAPTION = """
import("/page/api.js").then(async ({ events, request }) => {
  const name = new URL(document.querySelector("#captions-link").href).searchParams.get("name");
  for await (const caption of events(await request(`v1/captions/${name}`))) return caption;
})
"""
CUT_WHILE_WAITING = """
window.WebSocket = class extends WebSocket {
  constructor(...given) { super(...given); window.socket = this; }
};
window.told = [];
new MutationObserver(() => {
  const sentence = document.querySelector(".sheet .status").textContent;
  if (sentence === told.at(-1)) return;
  if (sentence.startsWith("Waiting") && !told.includes(sentence)) socket.close();
  told.push(sentence);
}).observe(document.querySelector("#sheets"), { subtree: true, childList: true, characterData: true });
"""
LOST_ANSWER = """
import("/page/api.js").then(async ({ events }) => {
  const lost = new ReadableStream({ pull: (controller) => controller.error(new TypeError("network error")) });
  try {
    for await (const event of events(new Response(lost)));
  } catch (error) {
    return error.message;
  }
})
"""
TEXT = "[...document.querySelectorAll('.text p')].map((p) => p.textContent.trim()).join(' ')"


@pytest.fixture(scope="module")
def browser(unhurried_server, tmp_path_factory):
    """A browser whose microphone hears a recording again and again: on a busy machine it may miss some of it."""
    if find_browser() is None:
        pytest.skip("there is no Chromium")
    folder = tmp_path_factory.mktemp("browser")
    speech = load_audio(EXAMPLE)[: round(SPEECH_S * SAMPLE_RATE)]
    heard = folder / "heard.wav"
    heard.write_bytes(wav(np.concatenate([speech, np.zeros(2 * SAMPLE_RATE, np.float32)])))
    flags = (
        f"--host-resolver-rules=MAP {FAR_NAME} 127.0.0.1",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={heard}",
    )
    with open_page(f"{unhurried_server.url}/", folder, flags) as browser:
        yield browser


@pytest.fixture
def page(unhurried_server, browser):
    """The page as it is opened, whatever other tests have done."""
    browser.problems.clear()
    browser.open(f"{unhurried_server.url}/")
    browser.resize(1240, 800)
    browser.wait("document.querySelector('#model').value")
    return browser


def with_text(page):
    """Return the page with a transcript on it."""
    page.choose_files("#files", EXAMPLE)
    page.wait("document.querySelector('.foot:not([hidden])')")
    return page


def picture(page, name):
    """Write a picture of the page for people, if they name a folder."""
    if folder := os.environ.get("HARKEN_PICTURES"):
        page.picture(Path(folder) / name)


def test_a_file_is_transcribed_played_and_saved_and_a_bad_one_says_why(page, unhurried, tmp_path, monkeypatch):
    broken = tmp_path / "broken.mp3"
    broken.write_bytes(b"no recording")
    page.choose_files("#files", EXAMPLE, broken)
    page.wait("document.querySelectorAll('.foot:not([hidden])').length === 1")
    page.wait("document.querySelector('.status.trouble')")
    assert "And so my fellow Americans" in page.run(TEXT)
    assert "harken" not in page.run("document.querySelector('.status.trouble').textContent")

    page.wait("!document.querySelector('.play').disabled")
    page.run("document.querySelectorAll('.word')[5].click()")
    page.wait("document.querySelector('.word.current')")
    page.click(".play")

    saved = page.download('button[aria-label="Download jfk.srt"]')
    monkeypatch.setattr("harken.cli.model_options.load", lambda **given: unhurried)
    options = ("--word-timestamps", "--no-progress", "--quiet", "-f", "srt", "-o", str(tmp_path))
    assert main(["transcribe", str(EXAMPLE), *options]) == 0
    assert saved == (tmp_path / "jfk.srt").read_bytes()
    beginnings = {"vtt": b"WEBVTT", "json": b"{", "txt": b"And so", "html": b"<!doctype html>"}
    for format, beginning in beginnings.items():
        assert page.download(f'button[aria-label="Download jfk.{format}"]').strip().startswith(beginning)
    picture(page, "file.png")
    page.click('button[aria-label="Remove: broken.mp3"]')
    assert page.run("document.querySelectorAll('.sheet').length") == 1
    assert len(page.problems) == 1
    assert "400" in page.problems[0]  # the browser's own note of the refusal


def test_a_file_that_is_gone_and_a_connection_that_is_lost_are_told_apart_from_a_server_that_is_not_there(
    page, tmp_path
):
    gone = tmp_path / "gone.mp3"
    gone.write_bytes(b"no recording")
    page.choose_files("#files", gone)
    page.wait("document.querySelector('.status.trouble')")
    gone.unlink()
    page.click('button[aria-label="Try again: gone.mp3"]')
    page.wait("document.querySelector('.status.trouble')?.textContent.startsWith('The file cannot be read: ')")

    assert page.run(LOST_ANSWER) == "The connection to the server was lost."


def test_what_the_microphone_hears_is_written_and_kept_with_its_recording(page, unhurried):
    page.resize(1240, 700)
    page.click("#captions")
    assert "/captions?name=" in page.run("document.querySelector('#captions-link').href")
    page.click("#record")
    page.wait("document.querySelector('.live .committed')?.textContent.includes('fellow')")
    page.wait("document.querySelector('.live .status').textContent.includes('settled after')")
    assert "fellow" in page.run("document.querySelector('[role=log]').textContent")
    picture(page, "page.png")
    assert page.run(FIRST_CAPTION)["live"]
    # On a busy machine it may miss a word, and hears it the next time.
    segments = "[...document.querySelectorAll('.live .segment')]"
    page.wait(f"{segments}.some((each) => each.textContent.includes('my fellow Americans'))")
    page.click("#record")
    page.wait("document.querySelector('button[aria-label$=\".wav\"]')")
    assert "my fellow Americans" in page.run("document.querySelector('.sheet .text').textContent")
    recorded = load_audio(io.BytesIO(page.download(".foot button[aria-label$='.wav']")))
    assert SPEECH_S < len(recorded) / SAMPLE_RATE < 60
    text = "".join(segment.text for segment in unhurried.transcribe(recorded))
    assert "my fellow Americans" in text
    assert b"my fellow Americans" in page.download(".foot button[aria-label$='.vtt']")
    assert page.run("document.querySelector('#record').getAttribute('aria-pressed')") == "false"
    assert page.problems == []


def test_a_connection_lost_behind_the_last_words_is_resumed_and_the_page_does_not_say_that_it_records(page):
    page.run(CUT_WHILE_WAITING)
    page.click("#record")
    page.wait("document.querySelector('.live .committed')?.textContent.includes('fellow')")
    page.click("#record")
    page.wait("document.querySelector('.foot:not([hidden])')")
    told = page.run("told")
    behind = told[told.index("Waiting for the last words") :]
    assert any("lost" in sentence for sentence in behind)
    assert not any("Recording" in sentence for sentence in behind)
    assert "fellow" in page.run(TEXT)


def test_captions_are_seen_as_the_address_says_and_go_with_their_session(page, unhurried_server):
    captions = "document.querySelector('#captions')"
    style = f"getComputedStyle({captions})"
    page.open(f"{unhurried_server.url}/captions?name=talk&lines=12")
    assert "lines=12: allowed is 1 to 10" in page.run("document.querySelector('#problem').textContent")
    page.open(f"{unhurried_server.url}/captions?name=talk&lines=1&size=40&color=ffe97a&align=left")
    with connect(f"{unhurried_server.socket_url}/v1/stream?captions=talk", ping_interval=None) as socket:
        socket.send(json.dumps({"type": "hello"}))
        socket.send(pcm(load_audio(EXAMPLE)[: round(SPEECH_S * SAMPLE_RATE)]))
        page.wait(f"{captions}.textContent.includes('fellow') && {style}.opacity === '1'")
        picture(page, "captions.png")
        assert page.run(f"{captions}.clientHeight") == 52  # a line of letters of 40 pixels
        assert page.run(f"[{style}.color, {style}.textAlign]") == ["rgb(255, 233, 122)", "left"]
        socket.send('{"type": "end"}')
        page.wait(f"{captions}.className === 'over'")
    assert page.problems == []


def test_every_control_has_a_name_and_is_reached_by_tab(page):
    assert with_text(page).run(CONTROLS_WITHOUT_A_NAME) == []
    page.run("document.querySelector('.skip').focus()")
    reached = [0]
    for _ in range(1, page.run(f"{CONTROLS}.length")):
        page.press("Tab")
        reached.append(page.run(f"{CONTROLS}.indexOf(document.activeElement)"))
    assert reached == [*range(len(reached))]  # in the order in which they are seen
    page.run("document.querySelector('.segment button').focus()")
    page.press("ArrowDown")
    assert page.run("document.activeElement.matches('.segment button')")


def test_it_fits_a_phone_by_day_and_by_night(page):
    with_text(page)
    for time, dark in (("light", False), ("dark", True)):
        page.resize(1240, 800, dark=dark)
        picture(page, f"wide-{time}.png")
        page.resize(360, 740, dark=dark)
        assert page.run("document.documentElement.scrollWidth") <= 360
        picture(page, f"phone-{time}.png")
        page.run("document.querySelector('.sheet').scrollIntoView()")
        picture(page, f"phone-text-{time}.png")


def test_it_asks_for_a_key_where_one_is_wanted_and_says_why_there_is_no_microphone(page, unhurried):
    options = ServeOptions(preload=False, api_key=(KEY,), allowed_host=(FAR_NAME,))
    with serving(lambda id: unhurried, options=options) as locked:
        page.open(f"http://{FAR_NAME}:{locked.port}/")
        assert "localhost" in page.run("document.querySelector('#mic-problem').textContent")
        assert page.run("document.querySelector('#record').disabled")
        page.wait("!document.querySelector('#key-wanted').hidden")
        page.run(f"document.querySelector('#key').value = '{KEY}'")
        page.click("#key-form button")
        page.wait("document.querySelector('#key-wanted').hidden && document.querySelector('#model').value")
        page.run(
            """import("/page/connection.js").then(({ Connection }) => {
                const hello = { audio: { format: "s16le", rate: 16000 } };
                const connection = new Connection(hello, { message() {}, lost() {}, back() {} });
                connection.send(new Int16Array(1600));
                connection.end();
                return connection.closed;
            })"""
        )
        refused = page.run(
            """import("/page/connection.js").then(({ Connection }) => {
                const hello = { audio: { format: "s16le", rate: 16000 } };
                window.WebSocket = class { // as behind a proxy that knows none
                    constructor() { setTimeout(() => this.onclose()); }
                    close() {}
                };
                return new Connection(hello, {}).closed.catch((error) => error.message);
            })"""
        )
        assert "a proxy in between has to pass the headers Upgrade" in refused
        page.open(f"http://{FAR_NAME}:{locked.port}/captions?name=talk#key={KEY}")
        page.wait("location.hash === '' && document.querySelector('#captions p')")
        page.open("about:blank")
    expected = ("401", "426", "insecure")
    assert all(any(each in problem for each in expected) for problem in page.problems), page.problems


def test_its_files_are_kept_by_browsers_and_run_nothing_from_elsewhere(unhurried_server):
    client = unhurried_server.http
    index = client.get("/")
    policy = index.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert index.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in index.text
    assert " style=" not in index.text
    for path in re.findall(r'(?:src|href)="(page/[^"]+)"', index.text):
        first = client.get(f"/{path}")
        assert first.status_code == 200
        assert client.get(f"/{path}", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    assert client.get("/page/page.py").status_code == 404


def test_a_server_without_the_page_has_no_page(unhurried):
    with serving(lambda id: unhurried, options=ServeOptions(preload=False, page=False)) as server:
        assert server.http.get("/").status_code == 404
