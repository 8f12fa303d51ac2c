"""What is inside a model: attention, the logit lens, direct logit attribution, patching, ablation."""

from gpt2fast.interpretability.ablation import ablation
from gpt2fast.interpretability.look import Look
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.interpretability.sweeps import ablation_sweep, patch_sweep
from gpt2fast.scoring.lens import Lens, lens

__all__ = ["Lens", "Look", "LookArrays", "ablation", "ablation_sweep", "lens", "patch_sweep"]
