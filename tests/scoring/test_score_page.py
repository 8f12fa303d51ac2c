"""The page of a scored text: every character once, and its tokens' numbers by pointer, keyboard and on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast.scoring.report import render_html

TEXT = 'The fox 🦊 said:\n"Zürich <b>狐</b>"\r\n\r\n\tend'


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


class Tokens(HTMLParser):
    """The tokens of a page: their attributes and the text shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tokens: list[tuple[dict[str, str], str]] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside |= tag == "main"
        if self.inside and tag == "span":
            self.tokens.append(({name: value or "" for name, value in attributes}, ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "main"

    def handle_data(self, data: str) -> None:
        if self.inside:
            attributes, shown = self.tokens[-1]
            self.tokens[-1] = attributes, shown + data


@given(st.text(st.sampled_from("ab <>&\"'\n\t\r\0é🦊狐…"), max_size=40))
def test_every_character_is_there_once_and_every_number(lm: gpt2fast.LanguageModel, text: str) -> None:
    score = lm.score(text)
    tokens = Tokens(render_html(score, "a text")).tokens
    shown = "".join(shown for _, shown in tokens)
    assert shown.replace("␀", "\0") == text
    numbers = "\n".join(attributes["data-numbers"] for attributes, _ in tokens)
    assert [int(i) for i in re.findall(r"” id (\d+): probability", numbers)] == score.ids.tolist()
    assert [float(bits) for bits in re.findall(r"probability \S+ surprisal ([\d.]+) bits", numbers)] == pytest.approx(
        score.surprisal.tolist(), abs=0.006
    )
    assert sum(float(attributes["data-bits"]) for attributes, _ in tokens) == pytest.approx(
        score.surprisal.sum(), abs=0.06 * len(tokens)
    )


def test_a_character_of_several_tokens_has_all_their_numbers(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score("a 🦊 b")
    tokens = Tokens(render_html(score, "a text")).tokens
    ((attributes, _),) = [token for token in tokens if "🦊" in token[1]]
    lines = attributes["data-numbers"].split("\n")
    parts = [token for token in score.tokens if token.span[0] <= 2 < token.span[1]]
    assert len(parts) > 1
    assert len(lines) == 1 + len(parts)
    bits = sum(part.surprisal for part in parts)
    assert lines[0].endswith(f"is {len(parts)} tokens, surprisal together {bits:.2f} bits")
    assert attributes["data-bits"] == f"{bits:.1f}"


def test_bytes_and_nothing(lm: gpt2fast.LanguageModel) -> None:
    tokens = Tokens(render_html(lm.score(b"caf\xe9 \xf0"), "a text")).tokens
    assert "".join(shown for _, shown in tokens) == "caf\\xe9 \\xf0"
    assert Tokens(render_html(lm.score(""), "a text")).tokens == []


# In a browser


@pytest.fixture(scope="module")
def tab(lm: gpt2fast.LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium (Debian: apt install chromium)")
    page = tmp_path_factory.mktemp("page") / "page.html"
    page.write_text(render_html(lm.score(TEXT), "a text"), "utf-8")
    with browser() as opened:
        opened.call("Page.navigate", url=Path(page).as_uri())
        opened.until("document.readyState === 'complete' && document.querySelector('main') !== null")
        yield opened


def after(tab: Browser, element: str, name: str) -> str:
    """A property of what CSS puts behind an element."""
    return str(tab.value(f"getComputedStyle({element}, '::after').{name}"))


def test_the_keyboard_shows_numbers(tab: Browser) -> None:
    seen = []
    tab.press("Tab", 9)
    assert tab.value("document.activeElement.id") == "by-surprisal"  # the choice of colours is one stop
    count = tab.value("document.querySelectorAll('main span').length")
    for _ in range(count):
        tab.press("Tab", 9)
        seen.append(tab.value("document.activeElement.dataset.numbers"))
        assert after(tab, "document.activeElement", "position") == "fixed"
    assert seen == tab.value("[...document.querySelectorAll('main span')].map(token => token.dataset.numbers)")
    content = after(tab, "document.activeElement", "content")
    assert "surprisal" in content
    # It is in the window, whole.
    assert after(tab, "document.activeElement", "bottom") == "0px"
    tab.value("document.activeElement.blur()")
    assert after(tab, "document.querySelector('main span')", "content") == "none"


def test_the_other_colouring_shows_ranks(tab: Browser, lm: gpt2fast.LanguageModel) -> None:
    def colours() -> list[str]:
        found: list[str] = tab.value(
            "[...document.querySelectorAll('main span')].map(token => getComputedStyle(token).backgroundColor)"
        )
        return found

    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    before = colours()
    assert not tab.value("document.querySelector('.ranks').offsetHeight")
    tab.value("document.querySelector('label[for=by-rank]').click()")
    assert tab.value("document.querySelector('.ranks').offsetHeight")
    assert not tab.value("document.querySelector('.bits').offsetHeight")
    variables = ["--top-10", "--top-100", "--top-1000", "--beyond"]
    of_bucket = [
        tab.value(f"getComputedStyle(document.documentElement).getPropertyValue('{name}')").split()
        for name in variables
    ]
    tokens = Tokens(render_html(lm.score(TEXT), "a text")).tokens
    expected = []
    for attributes, _ in tokens:
        rank = max(int(rank) for rank in re.findall(r"rank (\d+), entropy", attributes["data-numbers"]))
        bucket = sum(rank > border for border in (10, 100, 1000))
        expected.append(f"rgba({', '.join(of_bucket[bucket])}, 0.7)")
    assert colours() == expected
    assert len(set(expected)) > 2
    tab.value("document.querySelector('label[for=by-surprisal]').click()")
    assert colours() == before


def test_the_shares_of_the_buckets_are_told(lm: gpt2fast.LanguageModel) -> None:
    score = lm.score(TEXT)
    shares = [f"{(score.ranks <= border).mean():.1%} to {border}" for border in (10, 100, 1000)]
    assert f"Of all tokens {', '.join(shares)}." in render_html(score, "a text")
    assert "Of all tokens" not in render_html(lm.score(""), "a text")


def test_paper_has_the_numbers_and_the_colours(tab: Browser) -> None:
    tab.call("Emulation.setEmulatedMedia", media="print")
    bits = tab.value("document.querySelector('main span').dataset.bits")
    assert after(tab, "document.querySelector('main span')", "content") == f'"{bits}"'
    assert tab.value("getComputedStyle(document.querySelector('main span')).printColorAdjust") == "exact"
    assert tab.value("getComputedStyle(document.querySelector('.screen')).display") == "none"
    assert tab.value("getComputedStyle(document.querySelector('.paper')).display") == "inline"
    tab.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_everywhere(tab: Browser, scheme: str) -> None:
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    ink, paper = (tab.value(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    hot = tab.value("getComputedStyle(document.documentElement).getPropertyValue('--hot')")
    ground, text, colour = ([float(number) for number in re.findall(r"\d+", value)] for value in (paper, ink, hot))
    for depth in (0, 0.25, 0.5, 0.75, 1):
        assert contrast(colour, depth, ground, text) >= 4.5  # what WCAG 2 asks of text
    for name in ("top-10", "top-100", "top-1000", "beyond"):
        bucket = tab.value(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')")
        assert contrast([float(number) for number in bucket.split()], 0.7, ground, text) >= 4.5


def contrast(colour: list[float], depth: float, ground: list[float], text: list[float]) -> float:
    """The contrast of `text` on a colour that covers the ground at this depth."""
    mixed = [depth * c + (1 - depth) * g for c, g in zip(colour, ground, strict=True)]
    light, dark = sorted((luminance(mixed), luminance(text)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    """The relative luminance of an sRGB colour, as WCAG 2 defines it."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_it_asks_no_other_host(tab: Browser) -> None:
    requests = [event for event in tab.events if event.get("method") == "Network.requestWillBeSent"]
    assert {event["params"]["request"]["url"].partition(":")[0] for event in requests} == {"file"}
