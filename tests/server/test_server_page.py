"""The page in a real browser: a typed prompt, the text as it comes, surprisal, and nothing from any other host."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Browser, browser
from live_server import Live, live

import gpt2fast
from gpt2fast import LanguageModel

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def demo() -> LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def server(demo: LanguageModel) -> Iterator[Live]:
    with live(demo) as running:
        yield running


@pytest.fixture
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def visit(tab: Browser, server: Live) -> None:
    tab.call("Page.navigate", url=f"{server.url}/")
    tab.until("document.readyState === 'complete' && document.getElementById('model').textContent.length > 1")


def fill(tab: Browser, field: str, value: str) -> None:
    """Type a value into a field, over what is there."""
    tab.value(f"document.getElementById('{field}').focus(); document.getElementById('{field}').select()")
    tab.type(value)


def test_a_prompt_is_typed_and_goes_on(tab: Browser, server: Live, demo: LanguageModel) -> None:
    visit(tab, server)
    assert tab.value("document.getElementById('model').textContent") == "demo, context of 512 tokens"
    assert tab.value("document.activeElement.id") == "prompt"
    prompt = "Die Prinzessin sah 🥊 and"  # characters of several tokens, and one of two UTF-16 units
    fill(tab, "prompt", prompt)
    fill(tab, "max_tokens", "40")
    fill(tab, "seed", "3")
    tab.press("Enter", 13, modifiers=2)
    tab.until("/ended/.test(document.getElementById('status').textContent)")
    status = tab.value("document.getElementById('status').textContent")
    right = demo.generate(prompt, max_new_tokens=40, seed=3, logprobs=0)
    assert right.logprobs is not None
    assert tab.value("document.getElementById('text').textContent") == prompt + right.text
    bits = -sum(right.logprobs) / math.log(2) / len(right.ids)
    assert re.fullmatch(rf"40 new tokens in [\d.]+ s; {bits:.2f} bits a token; ended by its length", status), status

    # Each new token has its surprisal and a colour that goes with it.
    new = tab.value("[...document.querySelectorAll('#text .t:not(.prompt)')].map((t) => [t.dataset.bits, t.className])")
    total = sum(float(surprisal) for surprisal, _ in new)
    assert abs(total - bits * 40) < 0.01 * len(new)
    for surprisal, names in new:
        assert abs(int(names.removeprefix("t s")) - min(float(surprisal) / 2, 8)) <= 0.51
    assert tab.value("document.querySelectorAll('#text .prompt').length") < len(demo.tokenizer.encode(prompt))
    colours = tab.value("[...document.querySelectorAll('#scale .t')].map((t) => getComputedStyle(t).backgroundColor)")
    assert len(set(colours)) == 5

    # By keyboard: its numbers, and what else was likely.
    tab.value("document.getElementById('text').focus()")
    tab.press("End", 35)
    details = tab.value("document.getElementById('details').innerText")
    assert f"{float(new[-1][0]):.2f} bits of surprisal" in details
    assert "Likeliest here" in details
    tab.press("Home", 36)
    assert "the first one, which comes after nothing" in tab.value("document.getElementById('details').innerText")

    # All of that came from this server.
    told = [event for event in tab.events if event.get("method") == "Network.requestWillBeSent"]
    addresses = {event["params"]["request"]["url"] for event in told}
    assert {f"{server.url}/", f"{server.url}/page.js", f"{server.url}/v1/completions"} <= addresses
    assert all(address.startswith((server.url, "data:,")) for address in addresses), addresses
    errors = [event for event in tab.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert not errors


def test_text_appears_while_it_is_written_and_can_be_stopped(tab: Browser, server: Live) -> None:
    visit(tab, server)
    fill(tab, "max_tokens", "508")
    fill(tab, "seed", "2")  # of a text that does not end by itself
    tab.value(
        "const shown = document.getElementById('text'); window.seen = [];"
        "new MutationObserver(() => seen.push(shown.textContent.length)).observe(shown, {childList: true})"
    )
    tab.value("document.getElementById('go').click()")
    tab.until("new Set(seen).size > 5")
    tab.press("Escape", 27)
    tab.until("/stopped/.test(document.getElementById('status').textContent)")
    assert tab.value("document.getElementById('stop').disabled")
    assert tab.value("document.querySelectorAll('#text .t').length") < 508
    tab.value("document.getElementById('go').click()")
    tab.until("/ended/.test(document.getElementById('status').textContent)")
    assert server.engine.inside == 0


def test_other_hosts_are_out_of_reach(tab: Browser, server: Live) -> None:
    visit(tab, server)
    # Both are this machine; the policy must stop them all the same.
    for attempt in ("fetch('http://127.0.0.2:9/')", "fetch('http://127.0.0.1:9/')"):
        code = f"""new Promise((tell) => {{
            addEventListener('securitypolicyviolation', (event) => tell(event.effectiveDirective), {{once: true}});
            {attempt}.catch(() => 0);
        }})"""
        assert tab.value(code) == "connect-src"
    for element, directive in (("img", "img-src"), ("script", "script-src-elem"), ("iframe", "frame-src")):
        code = f"""new Promise((tell) => {{
            addEventListener('securitypolicyviolation', (event) => tell(event.effectiveDirective), {{once: true}});
            const made = document.createElement('{element}');
            made.src = 'http://127.0.0.2:9/x';
            document.body.append(made);
        }})"""
        assert tab.value(code) == directive
    status, headers, _ = server.ask("GET", "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_errors_are_shown_and_a_key_is_asked_for(tab: Browser, demo: LanguageModel) -> None:
    with live(demo, key="right") as server:
        visit(tab, server)
        assert not tab.value("document.getElementById('key_field').hidden")
        tab.value("document.getElementById('go').click()")
        tab.until("/a key is needed/.test(document.getElementById('status').textContent)")
        fill(tab, "key", "right")
        fill(tab, "max_tokens", "3")
        fill(tab, "prompt", "Once " * 600)
        tab.value("document.getElementById('go').click()")
        tab.until("/the model's limit is 512/.test(document.getElementById('status').textContent)")
        fill(tab, "prompt", "<b>Once</b>")
        tab.value("document.getElementById('go').click()")
        tab.until("/ended/.test(document.getElementById('status').textContent)")
        shown = tab.value("document.getElementById('text').textContent")
        assert shown.startswith("<b>Once</b>"), json.dumps(shown)
        assert tab.value("document.getElementById('model').textContent") == "demo, context of 512 tokens"


def texts(tab: Browser) -> tuple[str, str]:
    """The text that is shown, and the part of it in italics."""
    shown, prompt = (
        tab.value(f"[...document.querySelectorAll('#text {kind}')].map((t) => t.textContent).join('')")
        for kind in (".t", ".prompt")
    )
    return shown, prompt


def press(tab: Browser, button: str, ended: str = "ended by") -> None:
    """Click a button and wait for what the status says at the end."""
    tab.value("document.getElementById('status').textContent = ''")
    tab.value(f"document.querySelector('{button}').click()")
    tab.until(f"document.getElementById('status').textContent.includes('{ended}')")


def test_continue_appends_and_an_alternative_is_taken(tab: Browser, server: Live, demo: LanguageModel) -> None:
    visit(tab, server)
    assert tab.value("document.getElementById('continue').disabled")
    fill(tab, "temperature", "0")
    fill(tab, "max_tokens", "6")
    press(tab, "#go")
    first, prompt = texts(tab)
    assert (first, prompt) == ("Once upon a time, and the old man was", "Once upon a time")
    press(tab, "#continue")
    longer, prompt = texts(tab)
    assert longer == first + demo.generate(first, temperature=0, max_new_tokens=6).text
    assert prompt == "Once upon a time"

    # The second likeliest token in the place of " old", and on from there.
    tab.value("document.querySelectorAll('#text .t')[7].click()")
    name = tab.value("document.querySelectorAll('#details button')[1].textContent")
    assert name != " old"
    press(tab, "#details tr:nth-child(2) button")
    begun = f"Once upon a time, and the{name}"
    assert texts(tab) == (begun + demo.generate(begun, temperature=0, max_new_tokens=6).text, "Once upon a time")


def test_texts_stop_before_strings_and_are_only_scored(tab: Browser, server: Live, demo: LanguageModel) -> None:
    visit(tab, server)
    fill(tab, "temperature", "0")
    fill(tab, "stops", "xyz\n was\n\\n")
    press(tab, "#go", "ended by itself")
    assert texts(tab)[0] == "Once upon a time, and the old man"
    press(tab, "#score", "perplexity")
    assert texts(tab) == ("Once upon a time", "Once upon a time")
    bits = demo.score("Once upon a time", bos=False).surprisal.mean()
    assert f"4 tokens; {bits:.2f} bits a token; perplexity {2**bits:.2f}" in tab.value(
        "document.getElementById('status').textContent"
    )


def test_the_numbers_are_at_the_foot_of_a_phone(tab: Browser, server: Live) -> None:
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
    visit(tab, server)
    fill(tab, "max_tokens", "4")
    press(tab, "#go")
    assert tab.value("getComputedStyle(document.querySelector('#details .touch')).display") != "none"
    assert tab.value("getComputedStyle(document.querySelector('#details .pointer')).display") == "none"
    tab.value("document.querySelectorAll('#text .t')[2].click()")
    assert tab.value("getComputedStyle(document.getElementById('details')).position") == "fixed"
    assert tab.value("document.getElementById('details').getBoundingClientRect().bottom") == 844
    assert tab.value("document.documentElement.scrollWidth") <= 390
    tab.press("Escape", 27)
    assert tab.value("getComputedStyle(document.getElementById('details')).position") == "static"


def test_a_server_that_is_gone_is_told_in_words(tab: Browser, demo: LanguageModel) -> None:
    with live(demo) as server:
        visit(tab, server)
    press(tab, "#go", "The server cannot be reached")
    assert tab.value("document.getElementById('status').className") == "error"


def test_look_is_there_only_where_it_is_asked_for(tab: Browser, server: Live, demo: LanguageModel) -> None:
    assert server.ask("GET", "/look")[0] == 404
    assert server.post("/look/data", text="a")[0] == 404
    visit(tab, server)
    assert tab.value("document.getElementById('look')") is None
    with live(demo, look=True, key="right") as looking:
        assert looking.ask("GET", "/look")[0] == 200
        assert looking.post("/look/data", text="a")[0] == 401
        status, _, refused = looking.ask(
            "POST", "/look/data", {"text": "word " * 300}, {"Authorization": "Bearer right"}
        )
        assert (status, refused["error"]["param"]) == (400, "text")
        visit(tab, looking)
        fill(tab, "prompt", "The old <b>king</b> & 🦊")
        tab.value("document.getElementById('look').click()")
        tab.until("document.getElementById('status')?.textContent.includes('a key is needed')")
        fill(tab, "key", "right")
        tab.value("document.querySelector('#ask button').click()")
        tab.until("document.querySelectorAll('#lens td').length > 0")
        shown = "[...document.querySelectorAll('#text .t:not(.part)')].slice(1).map((t) => t.textContent).join('')"
        assert tab.value(shown) == "The old <b>king</b> & 🦊"
        # Not even the address tells the server of the text before it is asked.
        told = [
            event["params"]["request"]["url"] for event in tab.events if event["method"] == "Network.requestWillBeSent"
        ]
        assert f"{looking.url}/look" in told
