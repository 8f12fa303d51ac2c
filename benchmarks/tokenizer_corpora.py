"""Texts for the tokenizer's benchmarks: found beside any Python or built from a seed; nothing is downloaded."""

from __future__ import annotations

import ast
import gzip
import random
import sysconfig
from collections import defaultdict
from pathlib import Path

__all__ = ["code", "english", "hostile", "short_lines", "ten_languages"]

STDLIB = Path(sysconfig.get_paths()["stdlib"])

#: Article 1 of the Universal Declaration of Human Rights, from which words of ten languages are modelled.
ARTICLE_1 = {
    "German": (
        "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft u"
        "nd Gewissen begabt und sollen einander im Geiste der Brüderlichkeit begegnen."
    ),
    "French": (
        "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués "
        "de raison et de conscience et doivent agir les uns envers les autres dans un esprit de f"
        "raternité."
    ),
    "Russian": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разум"
        "ом и совестью и должны поступать в отношении друг друга в духе братства."
    ),
    "Greek": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είνα"
        "ι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με π"
        "νεύμα αδελφοσύνης."
    ),
    "Arabic": (
        "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل"
        " بعضهم بعضا بروح الإخاء."
    ),
    "Hindi": (
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। "
        "उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव "
        "करना चाहिए।"
    ),
    "Thai": (
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ"
    ),
    "Chinese": ("人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。"),
    "Japanese": (
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間"
        "は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。"
    ),
    "Korean": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이"
        "성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다."
    ),
}


def english(size: int, file: Path | None = None) -> str:
    """Prose: of `file` (plain or .gz) where one is given, else the docstrings and help topics of Python."""
    if file is not None:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        # Some contestants make it the special token wherever it stands.
        return content.decode().replace("<|endoftext|>", "")[:size]
    parts: list[str] = []
    for path in sorted(STDLIB.rglob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        if path.name == "topics.py":
            parts += [
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
        nodes = (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)))
        parts += [text for node in nodes if (text := ast.get_docstring(node))]
        if sum(map(len, parts)) > size:
            break
    return "\n\n".join(parts)[:size]


def code(size: int) -> str:
    """Python: the sources of the standard library and what is installed beside it."""
    parts: list[str] = []
    total = 0
    for path in sorted(STDLIB.rglob("*.py")):
        text = path.read_bytes().decode(errors="replace")
        parts.append(text)
        total += len(text)
        if total > size:
            break
    return "".join(parts)[:size]


def ten_languages(size: int) -> str:
    """Words of ten languages: a Markov chain over characters invents them, so most are new, as in a web crawl."""
    rng = random.Random(10)
    chains: list[tuple[str, dict[str, list[str]]]] = []
    for text in ARTICLE_1.values():
        follow: dict[str, list[str]] = defaultdict(list)
        for i in range(len(text) - 3):
            follow[text[i : i + 3]].append(text[i + 3])
            follow[text[i + 1 : i + 3]].append(text[i + 3])
        chains.append((text, follow))
    parts: list[str] = []
    total = 0
    while total < size:
        text, follow = rng.choice(chains)
        made = text[:3]
        while len(made) < 400:
            # Now and then by two characters only: more new words.
            after = follow.get(made[-3:] if rng.random() < 0.8 else made[-2:]) or follow.get(made[-2:])
            made += rng.choice(after) if after else " " + text[:3]
        parts.append(made)
        total += len(made.encode()) + 1
    return "\n".join(parts)


def short_lines(text: str, count: int) -> list[str]:
    """Lines of 20 to 200 characters of a text, again and again where it is too short."""
    rng = random.Random(3)
    lines = []
    at = 0
    for _ in range(count):
        length = rng.randint(20, 200)
        if at + length > len(text):
            at = rng.randint(0, 100)
        lines.append(text[at : at + length])
        at += length
    return lines


def hostile() -> dict[str, str]:
    """Pieces of a million bytes without a border."""
    rng = random.Random(7)
    base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return {
        "one letter": "a" * 1_000_000,
        "letters": "".join(rng.choices("etaoinshrdlu", k=1_000_000)),
        "digits": "".join(rng.choices("0123456789", k=1_000_000)),
        "spaces": " " * 1_000_000,
        "equals signs": "=" * 1_000_000,
        "base64 letters": "".join(rng.choices(base64, k=1_000_000)),
        "Chinese": "".join(rng.choices([chr(c) for c in range(0x4E00, 0x4E00 + 3000)], k=333_333)),
    }
