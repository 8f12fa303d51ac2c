"""What is inside a model: the logit lens."""

from gpt2fast.interpretability.lens import Lens, lens

__all__ = ["Lens", "lens"]
