"""What is inside a model: attention, the logit lens, direct logit attribution."""

from gpt2fast.interpretability.look import Look

__all__ = ["Look"]
