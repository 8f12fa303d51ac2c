"""The crates that are linked into the wheel's Rust module: rust/THIRD-PARTY-LICENSES.txt, and as a list for programs
rust/gpt2fast.cyclonedx.json (CycloneDX 1.5, which the wheel has in dist-info/sboms, PEP 770).

    python tests/tools/third_party.py [--check]

maturin would make such a list itself, but with the time and the build's folder in it, other ones each time.

Written from cargo's metadata and the crates' own files; procedural macros and what only the build uses are left out, as
nothing of them is in the wheel.  With --check nothing is written, and the status is 1 where the file is another.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LICENCES = ROOT / "rust" / "THIRD-PARTY-LICENSES.txt"
BILL = ROOT / "rust" / "gpt2fast.cyclonedx.json"
#: Licences that may be in the wheel; of several that a crate offers one is enough.
ALLOWED = {"MIT", "Apache-2.0", "Unlicense", "BSD-3-Clause", "Zlib"}
PLATFORMS = (
    *("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"),
    *("aarch64-apple-darwin", "x86_64-pc-windows-msvc"),
)


def metadata(platform: str) -> dict[str, Any]:
    """What cargo knows of the module's crates on a platform."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", "python"]
    command += ["--manifest-path", str(ROOT / "rust" / "Cargo.toml"), "--filter-platform", platform]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def linked() -> list[dict[str, Any]]:
    """The packages whose code is in the module, on any platform, by name; the project's own left out."""
    found: dict[str, dict[str, Any]] = {}
    for platform in PLATFORMS:
        cargo = metadata(platform)
        packages = {package["id"]: package for package in cargo["packages"]}
        dependencies = {node["id"]: node["deps"] for node in cargo["resolve"]["nodes"]}
        rest = [package["id"] for package in packages.values() if package["name"] == "gpt2fast-bpe"]
        seen: set[str] = set()
        while rest:
            package = packages[rest.pop()]
            macro = any("proc-macro" in target["kind"] for target in package["targets"])
            if package["id"] in seen or macro:
                continue
            seen.add(package["id"])
            for dependency in dependencies[package["id"]]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    rest.append(dependency["pkg"])
        found |= {identity: packages[identity] for identity in seen if packages[identity]["source"]}
    return sorted(found.values(), key=lambda package: (package["name"], package["version"]))


def parts(packages: list[dict[str, Any]]) -> Iterator[str]:
    """A part of the file for each package: its name, its licence and the text of that."""
    for package in packages:
        terms = package["license"] or ""
        offered = [term for term in re.split(r"\s+OR\s+|/", terms.strip("()")) if term in ALLOWED]
        if not offered:
            sys.exit(f"{package['name']} {package['version']} is under {terms!r}: none of {sorted(ALLOWED)}")
        chosen = "MIT" if "MIT" in offered else offered[0]
        directory = Path(package["manifest_path"]).parent
        names = [f"LICENSE-{chosen.upper().split('-')[0]}", "LICENSE", "LICENSE.md", "LICENSE.txt"]
        texts = [path for name in names if (path := directory / name).exists()]
        if not texts:
            sys.exit(f"{package['name']} {package['version']} has no file with its licence")
        head = f"{package['name']} {package['version']} ({chosen})"
        text = texts[0].read_text(encoding="utf-8").replace("\r\n", "\n").strip()
        yield f"{head}\n{'=' * len(head)}\n\n{text}\n"


def bill(packages: list[dict[str, Any]]) -> str:
    """The list for programs."""
    components = [
        {
            "type": "library",
            "name": package["name"],
            "version": package["version"],
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
        }
        for package in packages
    ]
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    return json.dumps(whole, indent=1) + "\n"


def main() -> None:
    """Write, or check; see the top of this file."""
    packages = linked()
    licences = "The Rust module of gpt2fast contains code of these crates.\n\n\n" + "\n\n".join(parts(packages))
    for path, text in ((LICENCES, licences), (BILL, bill(packages))):
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8", newline="\n")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is out of date: python tests/tools/third_party.py")


if __name__ == "__main__":
    main()
