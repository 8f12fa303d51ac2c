"""`python -m gpt2fast`: the shell command without its script."""

import sys

from gpt2fast.cli import main

sys.exit(main())
