"""What is inside a model: attention, the logit lens, direct logit attribution, patching, ablation."""

from gpt2fast.interpretability.ablation import ablation
from gpt2fast.interpretability.lens import Lens, lens
from gpt2fast.interpretability.look import Look
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.interpretability.sweeps import ablation_sweep, patch_sweep

__all__ = ["Lens", "Look", "LookArrays", "ablation", "ablation_sweep", "lens", "patch_sweep"]
