"""The GPT-2 network: token ids in, logits or hidden states out.

From the top down:

- `gpt2`        `GPT2`, the network that users hold
- `nonfinite`   where in it numbers cease to be finite
- `forward`     ids on their way in: checked, cut into passes of bounded size
- `parameters`  from a checkpoint to the device's layout, and back into files
- `backend`     what a device has to offer; the CPU's is there, a GPU's in `cuda`
- `pairing`     what a network and a tokenizer have in common
- `outputs`     what a pass gives: hidden states, logits, chosen ids, measures
- `hooks`       looking inside a pass, and changing it
- `draw`        one id chosen from logits by random bits without state
- `blas`        one thread a call, where SciPy's BLAS multiplies
"""

from __future__ import annotations

from gpt2fast.model.gpt2 import DTYPES, GPT2, Cache, Outputs

__all__ = ["DTYPES", "GPT2", "Cache", "Outputs"]
