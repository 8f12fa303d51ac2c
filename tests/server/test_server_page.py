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
