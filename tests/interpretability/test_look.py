"""What `look` computes, beside the model's own numbers, and the page that it makes: every text escaped, its size, and
what pointer and keyboard do in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Browser, browser
from hypothesis import given
from hypothesis import strategies as st

import gpt2fast
from gpt2fast._internal.pages import escaped
from gpt2fast.cli import main
from gpt2fast.interpretability import Look

TEXT = (
    'The fox 🦊 said:\n"Zürich <b>狐</b>"\n\nThe old king had three daughters. '
    "</script><script>window.broken = 1</script>"
)
HOSTILE = [
    "</script>",
    "<script>",
    "<!--",
    "<b>",
    "]]>",
    "&lt;",
    "$title",
    '"',
    "'",
    "\\",
    "\n",
    "\0",
    "é",
    "🦊",
    " the",
]


@pytest.fixture(scope="module")
def lm() -> gpt2fast.LanguageModel:
    return gpt2fast.load("demo")


@pytest.fixture(scope="module")
def found(lm: gpt2fast.LanguageModel) -> Look:
    return lm.look(TEXT)


class Scripts(HTMLParser):
    """The scripts of a page, by their type, and all names of elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.elements: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes)["type"], ""))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1] == "script" and self.cdata_elem == "script":
            kind, content = self.scripts[-1]
            self.scripts[-1] = kind, content + data


def data_of(page: str) -> Any:
    """What the page's script reads."""
    (content,) = (content for kind, content in Scripts(page).scripts if kind == "application/json")
    return json.loads(content)


def array(packed: Any) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), packed["type"])


# The numbers


def test_surprisal_is_that_of_score(lm: gpt2fast.LanguageModel, found: Look) -> None:
    score = lm.score(TEXT)
    assert found.ids[1:].tolist() == score.ids.tolist()
    np.testing.assert_allclose(found.surprisal[1:], score.surprisal, atol=1e-4)
    assert found.ranks[1:].tolist() == score.ranks.tolist()
    assert np.isnan(found.surprisal[0])


def test_shares_add_up_to_the_logit(lm: gpt2fast.LanguageModel, found: Look) -> None:
    logits = lm.model(found.ids)[:-1]
    right = logits[np.arange(len(logits)), found.ids[1:]] - logits.mean(axis=1)
    total = found.head_shares.sum((0, 1)) + found.mlp_shares.sum(0) + found.other_shares.sum(0)
    np.testing.assert_allclose(total, right, atol=1e-3)


def test_a_head_that_is_knocked_out_takes_its_share_with_it(lm: gpt2fast.LanguageModel, found: Look) -> None:
    # In the last layer nothing but the last MLP and the norm's scale comes after a head; both are held as they were.
    layer, head, token = lm.model.config.n_layer - 1, 3, 20
    ids = found.ids[:token]
    _, cache = lm.model.run_with_cache(ids, ["ln_final.hook_scale", f"blocks.{layer}.hook_mlp_out"])

    def without(z: Any, hook: Any) -> None:
        z[:, :, head] = 0

    def as_before(_: Any, hook: Any) -> Any:
        return cache[hook.name]

    def logit(hooks: Any) -> float:
        row = lm.model.run_with_hooks(ids, hooks)[-1]
        return float(row[found.ids[token]] - row.mean())

    held = [([f"blocks.{layer}.hook_mlp_out", "ln_final.hook_scale"], as_before)]
    share = logit(held) - logit([(f"blocks.{layer}.attn.hook_z", without), *held])
    assert share == pytest.approx(float(found.head_shares[layer, head, token - 1]), abs=2e-3)


def test_attention_is_that_of_the_hooks(lm: gpt2fast.LanguageModel, found: Look) -> None:
    _, cache = lm.model.run_with_cache(found.ids, "blocks.2.attn.hook_pattern")
    (pattern,) = cache["pattern", 2]
    np.testing.assert_allclose(found.patterns[2] / 255, pattern, atol=0.5 / 255 + 1e-6)


def test_the_lens_ends_with_the_model_itself(lm: gpt2fast.LanguageModel, found: Look) -> None:
    logits = lm.model(found.ids)
    assert found.lens_ids[-1, :, 0].tolist() == logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(found.lens_log_probabilities[-1], found.surprisal[1:] * -np.log(2), rtol=1e-5)
    assert (np.diff(found.lens_probabilities, axis=2) <= 0).all()
    # After the third layer: its residual stream through the last norm and the head.
    stream = lm.model.residual(found.ids, 6)
    back = lm.model.run_with_hooks(stream[None], start_at_layer=lm.model.config.n_layer)[0]
    assert found.lens_ids[3, :, 0].tolist() == back.argmax(axis=1).tolist()


def test_short_texts_and_bytes(lm: gpt2fast.LanguageModel) -> None:
    assert len(lm.look("")) == 1
    assert lm.look("").html()
    assert lm.look("a", bos=False).head_shares.shape == (6, 8, 0)
    assert b"\xff" in lm.look(b"caf\xff").tokens
    assert lm.look("<|endoftext|>", allow_special=True).ids.tolist() == [4095, 4095]
    for wrong, message in ((3, "text is of type int"), ("word " * 600, "the model's context is 512")):
        with pytest.raises(gpt2fast.Error, match=message):
            lm.look(wrong)  # type: ignore[arg-type]
    with pytest.raises(gpt2fast.InputError, match="expected at least one token"):
        lm.look("", bos=False)


# The page


@pytest.fixture(scope="module")
def plain_elements(lm: gpt2fast.LanguageModel) -> Any:
    return Scripts(lm.look("plain").html()).elements


@given(text=st.lists(st.sampled_from(HOSTILE), max_size=12).map("".join))
def test_no_text_is_html_and_none_is_lost(lm: gpt2fast.LanguageModel, plain_elements: Any, text: str) -> None:
    page = lm.look(text).html(title=text)
    parsed = Scripts(page)
    assert [kind for kind, _ in parsed.scripts] == ["application/json", "module"]
    assert parsed.elements == plain_elements
    data = data_of(page)
    shown = [token["shown"] for token in data["tokens"]][1:]
    assert "".join(part for part in shown if part != "·") == text


def test_arrays_are_what_was_found(found: Look) -> None:
    data = data_of(found.html())
    rows, columns = np.tril_indices(len(found))
    assert data["steps"] == 255
    assert (array(data["patterns"]).reshape(6, 8, -1) == found.patterns[:, :, rows, columns]).all()
    np.testing.assert_allclose(array(data["headShare"]) / 100, found.head_shares.ravel(), atol=0.0051)
    names = [data["names"][i] for i in array(data["lens"])]
    assert names[:3] == [escaped(found.texts[id]) for id in found.lens_ids.ravel()[:3].tolist()]


@pytest.mark.parametrize(("n_layer", "n_head", "sharpness"), [(12, 12, 0.05), (12, 12, 1.0), (24, 16, 0.3)])
def test_two_hundred_tokens_take_at_most_two_megabytes(
    found: Look, n_layer: int, n_head: int, sharpness: float
) -> None:
    rng = np.random.default_rng(5)
    T = 200
    attended = np.tri(T, dtype=np.float32) * rng.standard_gamma(sharpness, (4, T, T)).astype(np.float32) + 1e-9
    attended = np.rint(attended / attended.sum(axis=2, keepdims=True) * 255).astype(np.uint8)
    shares = rng.normal(size=(n_layer, n_head, T - 1)).astype(np.float32)
    lens = rng.integers(50257, size=(n_layer + 1, T, 3))
    large = replace(
        found,
        ids=rng.integers(50257, size=T),
        tokens=[f" token{i}" for i in range(T)],
        surprisal=rng.gamma(2.0, 3.0, T).astype(np.float32),
        ranks=rng.integers(1, 50257, T),
        # Heads are shuffled copies of four: what deflate does not see, as they are further apart than 32 KB.
        patterns=attended[rng.integers(4, size=(n_layer, n_head))],
        lens_ids=lens,
        lens_probabilities=rng.random((n_layer + 1, T, 3), np.float32),
        lens_log_probabilities=rng.normal(size=(n_layer + 1, T - 1)).astype(np.float32),
        head_shares=shares,
        mlp_shares=shares[:, 0],
        other_shares=shares[0, :3],
        texts=dict.fromkeys(lens.ravel().tolist(), " a token"),
    )
    assert len(large.html().encode()) <= 2_000_000


def test_notebooks_get_a_frame_of_its_own(found: Look) -> None:
    frame = found._repr_html_()
    assert re.match(
        r'<iframe title="Look inside" sandbox="allow-scripts" srcdoc="[^"<>]*" style="[^"]*"></iframe>$', frame
    )


def test_the_command_writes_a_page_and_replaces_none(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "page.html"
    assert main(["look", "The old king", "-o", str(out)]) == 0
    assert b"4 tokens" in capsysbinary.readouterr().err
    page = out.read_text("utf-8")
    assert [token["shown"] for token in data_of(page)["tokens"]] == ["<|endoftext|>", "The", " old", " king"]
    assert main(["look", "The wolf", "-o", str(out)]) == 2
    assert b"--overwrite replaces it" in capsysbinary.readouterr().err
    assert out.read_text("utf-8") == page
    assert main(["look", "The wolf", "-o", str(out), "--overwrite", "--quiet"]) == 0
    assert out.read_text("utf-8") != page
    file = tmp_path / "text.txt"
    file.write_bytes(b"caf\xe9")
    assert main(["look", "--file", str(file), "--quiet"]) == 0
    assert rb"\\xe9" in capsysbinary.readouterr().out


# In a browser


@pytest.fixture(scope="module")
def tab(found: Look, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium (Debian: apt install chromium)")
    page = tmp_path_factory.mktemp("page") / "page.html"
    page.write_text(found.html(TEXT), "utf-8")
    with browser() as opened:
        opened.call("Page.navigate", url=page.as_uri())
        opened.until("document.readyState === 'complete' && document.querySelectorAll('#lens td').length > 0")
        yield opened


def test_all_of_the_text_is_there_and_none_of_it_ran(tab: Browser, found: Look) -> None:
    assert tab.value("window.broken === undefined")
    assert tab.value("document.title") == re.sub(r"\s+", " ", TEXT)
    shown = tab.value(
        "[...document.querySelectorAll('#text .t:not(.part)')].slice(1).map((t) => t.textContent).join('')"
    )
    assert shown == TEXT
    assert tab.value("document.querySelectorAll('#text .t').length") == len(found)
    errors = [event for event in tab.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert not errors


def test_the_keyboard_goes_through_tokens_heads_and_layers(tab: Browser, found: Look) -> None:
    def numbers() -> str:
        return str(tab.value("document.getElementById('numbers').textContent"))

    tab.value("document.getElementById('text').focus()")
    tab.press("Home", 36)
    assert "comes after nothing" in numbers()
    for _ in range(6):
        tab.press("ArrowRight", 39)
    assert f"id {found.ids[6]}: surprisal {found.surprisal[6]:.2f} bits" in numbers()
    assert f"rank {found.ranks[6]}" in numbers()
    # The most responsible head is the first of the list.
    layer, head = divmod(int(found.head_shares[:, :, 5].argmax()), 8)
    assert tab.value("document.querySelector('#shares button').textContent") == f"L{layer}H{head}"
    tab.value("document.querySelector('#shares button').click()")
    query = 5
    best = int(found.patterns[layer, head, query].argmax())
    assert f"L{layer}H{head} looks from there at “{escaped(found.tokens[best])}”" in numbers()
    depth = tab.value(f"document.getElementById('t{best}').style.getPropertyValue('--s')")
    assert float(depth) == pytest.approx((found.patterns[layer, head, query, best] / 255) ** 0.5, abs=0.001)
    tab.value("document.querySelector('#heads [tabindex=\"0\"]').focus()")
    tab.press("ArrowDown" if layer < 5 else "ArrowUp", 40 if layer < 5 else 38)
    other = layer + 1 if layer < 5 else layer - 1
    assert tab.value("document.querySelector('.head_name').textContent") == f"L{other}H{head}"
    tab.value("document.getElementById('lens_scroll').focus()")
    tab.press("ArrowUp", 38)
    assert numbers().startswith(f"After layer 5, behind “{escaped(found.tokens[5])}”")
    tab.press("ArrowUp", 38)
    assert numbers().startswith(f"After layer 4, behind “{escaped(found.tokens[5])}”")


def test_a_touch_chooses_and_nothing_is_wider_than_a_phone(tab: Browser, found: Look) -> None:
    tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
    tab.value("scrollTo(0, 0)")
    spot = tab.value(
        "(() => { const box = document.getElementById('t3').getClientRects()[0]; return [box.x + 2, box.y + 4]; })()"
    )
    for kind, points in (("touchStart", [{"x": spot[0], "y": spot[1]}]), ("touchEnd", [])):
        tab.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    tab.until(f"document.getElementById('numbers').textContent.includes('id {found.ids[3]}:')")
    assert tab.value("getComputedStyle(document.getElementById('numbers')).position") == "fixed"
    assert tab.value("document.documentElement.scrollWidth") <= 390
    tab.call("Emulation.setTouchEmulationEnabled", enabled=False)
    tab.call("Emulation.clearDeviceMetricsOverride")


def test_it_asks_no_other_host(tab: Browser) -> None:
    requests = [event for event in tab.events if event.get("method") == "Network.requestWillBeSent"]
    assert {event["params"]["request"]["url"].partition(":")[0] for event in requests} <= {"file", "data", "blob"}
