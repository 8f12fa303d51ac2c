"""Looking inside a pass of the network, and changing it: names and calls are TransformerLens'.

- `names`              what can be seen, and how it is asked for
- `functions`          a user's functions, called and checked
- `steps`              the network step by step, with stops where something is asked for
- `steering`           a vector that is added while texts are generated
- `run`                a pass of texts with hooks, from any layer to any other
- `activation_cache`   what `GPT2.run_with_cache` kept
"""

from __future__ import annotations

from gpt2fast.model.hooks.activation_cache import ActivationCache
from gpt2fast.model.hooks.functions import Hook, HookFunction, HookPoint
from gpt2fast.model.hooks.names import NameFilter, act_name, hook_names
from gpt2fast.model.hooks.steering import Steering

__all__ = ["ActivationCache", "Hook", "HookFunction", "HookPoint", "NameFilter", "Steering", "act_name", "hook_names"]
