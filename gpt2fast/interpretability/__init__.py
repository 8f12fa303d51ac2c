"""What is inside a model, and what it takes to change it: attention, the lenses, direct logit attribution, patching,
ablation, steering, sparse autoencoders."""

from gpt2fast.interpretability.ablation import ablation
from gpt2fast.interpretability.activating import ActivatingToken, MaxActivating, max_activating
from gpt2fast.interpretability.look import Look
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.interpretability.sae import SparseAutoencoder
from gpt2fast.interpretability.steering import Steering, contrast_vector, load_steering, save_steering
from gpt2fast.interpretability.sweeps import ablation_sweep, patch_sweep
from gpt2fast.scoring.lens import Lens, lens

__all__ = [
    "ActivatingToken",
    "Lens",
    "Look",
    "LookArrays",
    "MaxActivating",
    "SparseAutoencoder",
    "Steering",
    "ablation",
    "ablation_sweep",
    "contrast_vector",
    "lens",
    "load_steering",
    "max_activating",
    "patch_sweep",
    "save_steering",
]
