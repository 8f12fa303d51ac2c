"""What is inside a model, and what it takes to change it: attention, the logit lens, steering, sparse autoencoders."""

from gpt2fast.interpretability.activating import ActivatingToken, MaxActivating, max_activating
from gpt2fast.interpretability.lens import Lens, lens
from gpt2fast.interpretability.look import Look
from gpt2fast.interpretability.look_arrays import LookArrays
from gpt2fast.interpretability.sae import SparseAutoencoder
from gpt2fast.interpretability.steering import Steering, contrast_vector, load_steering, save_steering

__all__ = [
    "ActivatingToken",
    "Lens",
    "Look",
    "LookArrays",
    "MaxActivating",
    "SparseAutoencoder",
    "Steering",
    "contrast_vector",
    "lens",
    "load_steering",
    "max_activating",
    "save_steering",
]
