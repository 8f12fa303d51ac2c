"""What is inside a model: attention, the logit lens, direct logit attribution."""

from gpt2fast.interpretability.look import Look
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.scoring.lens import Lens, lens

__all__ = ["Lens", "Look", "LookArrays", "lens"]
