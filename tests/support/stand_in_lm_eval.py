"""What gpt2fast uses of lm-evaluation-harness, for where that is not installed: the base class and the registry."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class LM:
    def __init__(self) -> None:
        self.cache_hook = SimpleNamespace(add_partial=lambda kind, arguments, result: None)


class Registry(dict[str, Any]):
    def register(self, name: str, target: Any) -> None:
        if name in self:
            raise ValueError(f"{name} is already registered")
        self[name] = target


def modules() -> dict[str, ModuleType]:
    """The modules by name, for `sys.modules`."""
    found = {name: ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.models")}
    found["lm_eval.api.model"].LM = LM  # type: ignore[attr-defined]
    found["lm_eval.api.registry"] = registry = ModuleType("lm_eval.api.registry")
    registry.model_registry = Registry()  # type: ignore[attr-defined]
    return found
