"""The built pages load nothing from another host: `make docs` runs this on build/site.

Links for a reader to follow may go anywhere; what a browser fetches by itself may not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: In pages: scripts, images, frames; and the kinds of <link> that are fetched.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*rel=["']?(?:stylesheet|preconnect|preload|prefetch|icon))[^>]*href=["']?((?:https?:)?//[^"'\s>]+)"""
)
#: In style sheets.
IMPORTED = re.compile(r"""(?:@import\s+["']?|url\(\s*["']?)((?:https?:)?//[^"')\s]+)""")


def main(site: Path) -> None:
    """Look through every page and style sheet; end with what was found."""
    pages = list(site.rglob("*.html"))
    if not pages:
        sys.exit(f"{site}: there are no pages")
    found = [
        f"{file.relative_to(site)}: {''.join(address)}"
        for pattern, files in ((FETCHED, pages), (IMPORTED, [*pages, *site.rglob("*.css")]))
        for file in files
        for address in pattern.findall(file.read_text(encoding="utf-8"))
    ]
    if found:
        sys.exit("\n".join(["these are fetched from other hosts:", *found]))
    print(f"{site}: {len(pages)} pages, nothing from other hosts")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
